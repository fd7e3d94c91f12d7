"""Every mlx-lm family, in every form of weights, through every way in that needs no program.

`make test` tries the TWELVE of `tests/product.py`, each in one form; `make test-all` the whole
product.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from scripts.families import listed_verdicts
from scripts.forms import FORMS
from tests.product import FAMILIES, GROUPS, TWELVE, agrees, computing, try_ways

# Attends within chunks.
NO_PREFIX = {"llama4"}

# Their caches are copied for every token, or let tokens see more than one at a time would.
NO_DRAFTS = {"llama4", "minimax_m3_vl", "phi3small"}

# Their rows are generated one after the other: they take one offset for all rows, attend within
# chunks, or group tokens by their place in the window.
NO_ROWS = {"internlm2", "internlm3", "llama4", "longcat_flash_ngram", "minimax_m3_vl", "phi3small"}

# Its indexer chooses the tokens to attend to, and rounding changes that: in this form mostly.
CHOOSES_OTHERS = {
    ("deepseek_v32", "8-bit"): {"prefill", "evict"},
    # With these weights alone, rounding chooses other experts.
    ("glm4_moe_lite", "8-bit"): {"rows"},
}

VERDICTS = listed_verdicts()


@pytest.mark.parametrize(
    ("family", "form"),
    [
        pytest.param(*each, marks=[] if each in TWELVE.items() else pytest.mark.slow)
        for each in product(FAMILIES, FORMS)
    ],
)
@pytest.mark.parametrize("ways", GROUPS, ids="-".join)
def test_each_way_in_matches_the_plain_computation_or_is_refused(
    family: str, form: str, ways: Sequence[str], tmp_path: Path
) -> None:
    """Only one family had been tested, in float32; gpt_oss ran out of positions in bfloat16.

    The chat crashed on every Llama 3.x: its rope frequencies are not parameters, so they stayed
    unevaluated in the thread that loaded the model.
    """
    with computing(family, form):
        outcome = try_ways(family, form, ways, tmp_path)
    assert outcome.verdict == VERDICTS[family]
    wrong = {way: e for way, e in outcome.errors.items() if not agrees(outcome.dtype, way, e)}
    assert wrong.keys() <= CHOOSES_OTHERS.get((family, form), set())
    is_refused = VERDICTS[family].memory == "refused"
    assert "answer" not in outcome.refused
    refusals = {
        "snapshot": is_refused,
        "prefix": is_refused or family in NO_PREFIX,
        "draft": is_refused or family in NO_DRAFTS,
        "block": is_refused or VERDICTS[family].blocks != "works",
        "rows": is_refused or family in NO_ROWS or "rows" in CHOOSES_OTHERS.get((family, form), ()),
    }
    assert outcome.refused.keys() & refusals.keys() == {way for way in ways if refusals.get(way)}


def test_the_twelve_have_every_form() -> None:
    assert {*TWELVE.values()} == {*FORMS}
