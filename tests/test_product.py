"""Every mlx-lm family, in every form of weights, through every way in that needs no program.

`make test` tries twelve families of different kinds, each in one form; `make test-all` the whole
product.
"""

from itertools import cycle, product
from pathlib import Path

import pytest

from scripts.families import listed_verdicts
from scripts.forms import FORMS
from tests.product import FAMILIES, agrees, computing, try_ways

# Attends within chunks.
NO_PREFIX = {"llama4"}

# Their caches are copied for every token, or let tokens see more than one at a time would.
NO_DRAFTS = {"llama4", "minimax_m3_vl", "phi3small"}

# Their rows are generated one after the other: they take one offset for all rows, attend within
# chunks, or group tokens by their place in the window.
NO_ROWS = {"internlm2", "internlm3", "llama4", "longcat_flash_ngram", "minimax_m3_vl", "phi3small"}

# Its indexer chooses the tokens to attend to, and rounding changes the choice: in most steps in
# this form, in some in the others.
CHOOSES_OTHERS = {
    ("deepseek_v32", "8-bit"): {"prefill", "evict"},
    # With these weights alone, rounding chooses other experts.
    ("glm4_moe_lite", "8-bit"): {"rows"},
}

VERDICTS = listed_verdicts()
FIRST_OF_ITS_KIND = {*{VERDICTS[family]: family for family in reversed(FAMILIES)}.values()}
# The first family with each verdict in the manual's table, one with attention sinks and one with
# sliding windows of its own.
KINDS = sorted({*FIRST_OF_ITS_KIND, "gpt_oss", "gemma3_text"})
SAMPLE = {*zip(KINDS, cycle(FORMS), strict=False)}


@pytest.mark.parametrize(
    ("family", "form"),
    [
        pytest.param(*each, marks=[] if each in SAMPLE else pytest.mark.slow)
        for each in product(FAMILIES, FORMS)
    ],
)
def test_each_way_in_matches_the_plain_computation_or_is_refused(
    family: str, form: str, tmp_path: Path
) -> None:
    """Only one family had been tested, in float32; gpt_oss ran out of positions in bfloat16.

    The chat crashed on every Llama 3.x: its rope frequencies are not parameters, so they stayed
    unevaluated in the thread that loaded the model.
    """
    with computing(family, form):
        outcome = try_ways(family, form, tmp_path)
    assert outcome.verdict == VERDICTS[family]
    wrong = {way: e for way, e in outcome.errors.items() if not agrees(outcome.dtype, way, e)}
    assert wrong.keys() <= CHOOSES_OTHERS.get((family, form), set())
    is_refused = VERDICTS[family].memory == "refused"
    assert "answer" not in outcome.refused
    refused = {
        "snapshot": is_refused,
        "prefix": is_refused or family in NO_PREFIX,
        "draft": is_refused or family in NO_DRAFTS,
        "block": is_refused or VERDICTS[family].blocks != "works",
        "rows": is_refused or family in NO_ROWS or "rows" in CHOOSES_OTHERS.get((family, form), ()),
    }
    assert {way for way in refused if way in outcome.refused} == {
        way for way, expected in refused.items() if expected
    }


def test_the_sample_has_every_form_and_every_kind() -> None:
    assert {form for _, form in SAMPLE} == set(FORMS)
    assert {VERDICTS[family] for family, _ in SAMPLE} == {VERDICTS[each] for each in FAMILIES}
