"""Samplers, biases and penalties, against plain references in numpy."""

import math
from collections import Counter
from types import SimpleNamespace
from typing import cast

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.cache.build import make_cache
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply, check_min_tokens
from mlxchat.engine.sampling import MAX_REPETITION, make_draw, make_dry, make_penalty
from mlxchat.errors import UsageError
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, SamplingSettings
from mlxchat.text.reply_reader import Reader
from scripts.tiny_model import write_tiny_model

PROMPT = np.array([72, 101, 108, 108, 111], np.int32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    return load_directory(directory, "tiny", dtype="float32", notify=lambda _: None)


def draws(settings: SamplingSettings, logits: list[float], count: int = 2_000) -> Counter[int]:
    draw = make_draw(settings, len(logits))
    row = mx.array([logits])
    tokens = [draw(row, index) for index in range(count)]
    return Counter(np.array(mx.concatenate(tokens)).tolist())


def test_xtc_excludes_all_likely_tokens_but_the_last_in_a_share_of_draws() -> None:
    logits = [math.log(each) for each in (0.4, 0.3, 0.2, 0.1)]
    settings = SamplingSettings(temp=1.0, xtc_probability=0.5, xtc_threshold=0.15, seed=1)
    found = draws(settings, logits)
    # Half of the draws are from the last two: two thirds and one third.
    expected = (0.2, 0.15, 0.1 + 1 / 3, 0.05 + 1 / 6)
    for token, share in enumerate(expected):
        assert found[token] / 2_000 == pytest.approx(share, abs=0.04)


def test_xtc_spares_the_end_of_the_text() -> None:
    settings = SamplingSettings(temp=1.0, xtc_probability=1.0, xtc_threshold=0.1, seed=1)
    draw = make_draw(settings, 3, spared_ids=[0])
    row = mx.array([[math.log(each) for each in (0.5, 0.3, 0.2)]])
    found = {int(np.array(draw(row, index))[0]) for index in range(100)}
    assert found == {0, 2}


def test_penalties_and_biases_are_added_up() -> None:
    settings = SamplingSettings(
        presence_penalty=1.0,
        frequency_penalty=0.25,
        logit_bias=("3=2.5", "0=-100", "3=1.5"),
    )
    penalize = make_penalty(settings)
    assert penalize is not None
    latest = mx.array([1, 2, 1, 1])
    result = np.array(penalize(latest, mx.zeros((1, 5))))[0]
    np.testing.assert_allclose(result, [-100, -1.75, -1.25, 1.5, 0])


@given(
    st.lists(st.integers(0, 4), max_size=60),
    st.integers(1, 5),
    st.floats(0.1, 2),
    st.sets(st.integers(0, 4), max_size=2),
)
def test_dry_penalizes_what_would_extend_a_repetition(
    ids: list[int], allowed: int, multiplier: float, breakers: set[int]
) -> None:
    expected = np.zeros(5)
    for end in range(1, len(ids)):
        length = 0
        while (
            length < end and ids[end - 1 - length] == ids[-1 - length] and length < MAX_REPETITION
        ):
            if ids[-1 - length] in breakers:
                break
            length += 1
        if length >= allowed and ids[end] not in breakers:
            penalty = multiplier * 1.75 ** (length - allowed)
            expected[ids[end]] = max(expected[ids[end]], penalty)
    penalize = make_dry(multiplier, 1.75, allowed, breakers)
    found = np.array(penalize(mx.array(ids, mx.int32), mx.zeros((1, 5))))[0]
    np.testing.assert_allclose(found, -expected, rtol=1e-4)


def test_dry_ends_a_loop(model: Model) -> None:
    """A greedy random model ends in a loop, and a strong penalty lets nothing repeat for long."""
    settings = GenerationSettings(max_tokens=300)
    plain = ids_of(model, settings, SamplingSettings())
    dry = ids_of(model, settings, SamplingSettings(dry_multiplier=5.0))

    def repeated(ids: list[int]) -> int:
        runs = [tuple(ids[at : at + 6]) for at in range(len(ids) - 5)]
        return len(runs) - len(set(runs))

    assert repeated(plain) > 50
    assert repeated(dry) < repeated(plain) // 10


def test_a_bias_for_a_token_that_the_model_lacks_is_refused(model: Model) -> None:
    sampling = SamplingSettings(logit_bias=("288=1",))
    reply = Reply(model, PROMPT, make_cache(model.network), sampling=sampling)
    with pytest.raises(UsageError, match="has the id 288, but the model has only 288 tokens"):
        list(generate(reply))


@pytest.mark.parametrize(
    "bias", ["", "5", "five=1", "5=", "5=nan", "5=inf", "-5=1", "5=1e9", "5==1"]
)
def test_a_bias_must_be_an_id_and_a_number(bias: str) -> None:
    with pytest.raises(UsageError, match="must be a token's id, =, and a number"):
        SamplingSettings(logit_bias=(bias,))


def ids_of(model: Model, settings: GenerationSettings, sampling: SamplingSettings) -> list[int]:
    reply = Reply(model, PROMPT, make_cache(model.network), sampling=sampling, settings=settings)
    return [token.id for token in generate(reply) if token.id is not None]


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_the_text_does_not_end_before_the_minimum(
    model: Model, monkeypatch: pytest.MonkeyPatch, temp: float
) -> None:
    sampling = SamplingSettings(temp=temp, seed=3)
    without = ids_of(model, GenerationSettings(max_tokens=30), sampling)
    ends = frozenset(without[5:])
    monkeypatch.setattr(model.tokenizer, "eos_ids", ends)
    plain = ids_of(model, GenerationSettings(max_tokens=30), sampling)
    assert len(plain) <= 5
    for minimum in (len(plain) + 1, 12):
        ids = ids_of(model, GenerationSettings(max_tokens=30, min_tokens=minimum), sampling)
        assert len(ids) >= minimum
        assert not ends & set(ids)


def test_a_marker_that_may_end_a_reply_or_a_thought_cannot_be_delayed(model: Model) -> None:
    settings = GenerationSettings(min_tokens=5)
    check_min_tokens(settings, model.tokenizer.reader())
    channels = SimpleNamespace(ends_by_marker=True)
    with pytest.raises(UsageError, match="--min-tokens cannot be used with this model"):
        check_min_tokens(settings, cast("Reader", channels))
