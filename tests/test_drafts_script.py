"""The script that compares texts with and without drafts would notice a wrong one."""

import pytest

from mlxchat.settings import SamplingSettings
from scripts.bench import drafts
from scripts.bench.drafts import ROUNDING, compare, difference, generate
from scripts.families import build_family


def test_texts_with_and_without_drafts_are_compared() -> None:
    found = compare("llama", seeds=1)
    assert found is not None
    assert (found.texts, found.differences) == (1, [])
    assert 0 < found.accepted < found.drafted


def test_a_family_that_cannot_be_bounded_has_no_drafts() -> None:
    assert compare("gpt2", seeds=1) is None


@pytest.mark.parametrize("sampling", [SamplingSettings(), SamplingSettings(temp=0.8, seed=3)])
def test_a_wrong_token_has_a_gap_too_large_for_rounding(
    sampling: SamplingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "TOKENS", 12)
    network = build_family("llama")
    plain = generate(network, sampling)
    wrong = [*plain[:5], (plain[5] + 1) % 256, *plain[6:]]
    found = difference(network, sampling, plain, wrong)
    assert found.index == 5
    assert found.gap > ROUNDING
