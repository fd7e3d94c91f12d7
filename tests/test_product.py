"""Every family of mlx-lm, in every form of weights, through every way in that needs no program."""

from pathlib import Path

import pytest

from scripts.families import readme_verdicts
from scripts.forms import DTYPES
from tests.product import FAMILIES, agrees, computing, try_all

# 8 bits are packed and computed as 4 are: every eighth family shows it.
CASES = [(family, form) for family in FAMILIES for form in (*DTYPES, "4-bit")]
CASES += [(family, "8-bit") for family in FAMILIES[::8]]

# Its layers attend within chunks.
NO_PREFIX = {"llama4"}

VERDICTS = readme_verdicts()


@pytest.mark.parametrize(("family", "form"), CASES)
def test_each_way_in_is_the_plain_computation_or_refused(
    family: str, form: str, tmp_path: Path
) -> None:
    """It had been shown on one family, in float32; gpt_oss ran out of positions in bfloat16."""
    with computing(family, form):
        outcome = try_all(family, form, tmp_path)
    assert outcome.verdict == VERDICTS[family]
    wrong = {way: e for way, e in outcome.errors.items() if not agrees(outcome.dtype, way, e)}
    assert wrong == {}
    is_refused = VERDICTS[family].memory == "refused"
    assert ("snapshot" in outcome.refused) == is_refused
    assert ("block" in outcome.refused) == (is_refused or VERDICTS[family].blocks != "joined")
    assert ("prefix" in outcome.refused) == (is_refused or family in NO_PREFIX)
