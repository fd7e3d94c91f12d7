"""Every mlx-lm family, in every form of weights, through every way in that needs no program.

`make test` tries a sample: the first family with each verdict in the manual's table in every form
and through every way; each other family in one form, in a window and through one of the other ways.
`make test-all` tries the whole product.
"""

from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

from scripts.families import listed_verdicts
from scripts.forms import FORMS
from tests.product import FAMILIES, WAYS, agrees, computing, try_ways

# Attends within chunks.
NO_PREFIX = {"llama4"}

# Their caches are copied for every token, or let tokens see more than one at a time would.
NO_DRAFTS = {"llama4", "minimax_m3_vl", "phi3small"}

# Their rows are generated one after the other: they take one offset for all rows, attend within
# chunks, or group tokens by their place in the window.
NO_ROWS = {"internlm2", "internlm3", "llama4", "longcat_flash_ngram", "minimax_m3_vl", "phi3small"}

# Its indexer chooses the tokens to attend to, and rounding changes the choice: in most steps in
# this form, in some in the others.
CHOOSES_OTHERS = {("deepseek_v32", "8-bit"): {"prefill", "evict"}}

VERDICTS = listed_verdicts()
FIRST_OF_ITS_KIND = {*{VERDICTS[family]: family for family in reversed(FAMILIES)}.values()}
SAMPLE = {*zip(FAMILIES, cycle(FORMS), strict=False), *product(FIRST_OF_ITS_KIND, FORMS)}
WINDOW, *OTHER_WAYS = WAYS


def cases() -> Iterator[Any]:
    """Families, forms and ways; what is not in the sample is slow."""
    in_turn = cycle(OTHER_WAYS)
    for family, form in product(FAMILIES, FORMS):
        is_sampled = (family, form) in SAMPLE
        if not is_sampled or family in FIRST_OF_ITS_KIND:
            yield pytest.param(family, form, [*WAYS], marks=[] if is_sampled else pytest.mark.slow)
            continue
        way = next(in_turn)
        rest = [each for each in OTHER_WAYS if each != way]
        yield pytest.param(family, form, [WINDOW, way])
        yield pytest.param(family, form, rest, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("family", "form", "ways"),
    [*cases()],
    ids=lambda value: "+".join(value) if isinstance(value, list) else value,
)
def test_each_way_in_matches_the_plain_computation_or_is_refused(
    family: str, form: str, ways: list[str], tmp_path: Path
) -> None:
    """Only one family had been tested, in float32; gpt_oss ran out of positions in bfloat16.

    The chat crashed on every Llama 3.x: its rope frequencies are not parameters, so they stayed
    unevaluated in the thread that loaded the model.
    """
    with computing(family, form):
        outcome = try_ways(family, form, tmp_path, ways)
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
        "rows": is_refused or family in NO_ROWS,
    }
    for way in {*ways} - {WINDOW, "answer"}:
        assert (way in outcome.refused) == refused[way]


def test_the_sample_has_every_family_and_every_form_of_each_kind() -> None:
    assert {family for family, _ in SAMPLE} == set(FAMILIES)
    assert {(VERDICTS[family], form) for family, form in SAMPLE} == {
        *product({VERDICTS[family] for family in FAMILIES}, FORMS)
    }
