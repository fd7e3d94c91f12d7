"""Samplers, biases and penalties, against plain references in numpy."""

import math
from types import SimpleNamespace
from typing import cast

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.engine.reply import check_min_tokens
from mlxchat.engine.sampling import MAX_REPETITION, Chooser, make_draw, make_dry, make_penalty
from mlxchat.errors import UsageError
from mlxchat.settings import GenerationSettings, SamplingSettings
from mlxchat.text.reply_reader import Reader


def test_xtc_excludes_all_likely_tokens_but_the_last_in_a_share_of_draws() -> None:
    logits = [math.log(each) for each in (0.4, 0.3, 0.2, 0.1)]
    settings = SamplingSettings(temp=1.0, xtc_probability=0.5, xtc_threshold=0.15, seed=1)
    draw = make_draw(settings, len(logits))
    tokens = mx.concatenate([draw(mx.array([logits]), index) for index in range(800)])
    shares = np.bincount(np.array(tokens)) / 800
    # Half of the draws are from the last two: two thirds and one third.
    np.testing.assert_allclose(shares, [0.2, 0.15, 0.1 + 1 / 3, 0.05 + 1 / 6], atol=0.05)


def test_xtc_spares_the_end_of_the_text() -> None:
    settings = SamplingSettings(temp=1.0, xtc_probability=1.0, xtc_threshold=0.1, seed=1)
    draw = make_draw(settings, 3, spared_ids=[0])
    row = mx.array([[math.log(each) for each in (0.5, 0.3, 0.2)]])
    assert {int(np.array(draw(row, index))[0]) for index in range(40)} == {0, 2}


def test_float16_logits_are_not_too_large_for_a_low_temperature() -> None:
    """They overflowed, and any token was as likely as any other."""
    draw = make_draw(SamplingSettings(temp=0.0001, seed=1), 3)
    row = mx.array([[20.0, 30.0, 10.0]], mx.float16)
    assert {int(np.array(draw(row, index))[0]) for index in range(40)} == {1}


def test_penalties_and_biases_are_added_up() -> None:
    biases = ("3=2.5", "0=-100", "3=1.5")
    given = SamplingSettings(presence_penalty=1.0, frequency_penalty=0.25, logit_bias=biases)
    penalize = make_penalty(given)
    assert penalize is not None
    result = np.array(penalize(mx.array([1, 2, 1, 1]), mx.zeros((1, 5))))[0]
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
        n = 0
        while n < end and ids[end - 1 - n] == ids[-1 - n] and n < MAX_REPETITION:
            if ids[-1 - n] in breakers:
                break
            n += 1
        if n >= allowed and ids[end] not in breakers:
            expected[ids[end]] = max(expected[ids[end]], multiplier * 1.75 ** (n - allowed))
    penalize = make_dry(multiplier, 1.75, allowed, breakers)
    found = np.array(penalize(mx.array(ids, mx.int32), mx.zeros((1, 5))))[0]
    np.testing.assert_allclose(found, -expected, rtol=1e-4)


@given(
    ids=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    newest=st.integers(0, 4),
    sampling=st.sampled_from(
        [
            SamplingSettings(temp=1.0, seed=1),
            SamplingSettings(temp=1.0, top_k=3, seed=2, repetition_penalty=1.3),
            SamplingSettings(temp=0.8, seed=3, presence_penalty=0.5, frequency_penalty=0.3),
            SamplingSettings(temp=0.8, seed=4, dry_multiplier=0.8, dry_allowed_length=1),
        ]
    ),
    min_tokens=st.integers(0, 8),
)
def test_a_token_drawn_before_the_one_before_it_is_known_is_the_same(
    ids: list[int], newest: int, sampling: SamplingSettings, min_tokens: int
) -> None:
    ahead, after = (
        Chooser(
            np.array(ids, np.int32),
            sampling,
            GenerationSettings(min_tokens=min_tokens, logprobs=2),
            eos_ids=[4],
            index=5,
        )
        for _ in range(2)
    )
    logits = [[0.1, 0.5, -0.3, 0.2, 0.4]]
    found = ahead.draw(mx.array(logits), mx.array([newest])).read()
    after.take(newest)
    assert found == after.draw(mx.array(logits)).read()


@pytest.mark.parametrize("bias", ["", "5", "five=1", "5=", "5=nan", "-5=1", "5=1e9", "5==1"])
def test_a_bias_must_be_an_id_and_a_number(bias: str) -> None:
    with pytest.raises(UsageError, match="must be a token's id, =, and a number"):
        SamplingSettings(logit_bias=(bias,))


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_the_text_does_not_end_before_the_minimum(temp: float) -> None:
    settings = GenerationSettings(min_tokens=3)
    sampling = SamplingSettings(temp=temp, seed=3)
    chooser = Chooser(np.array([7], np.int32), sampling, settings, eos_ids=[1, 2])
    drawn: list[int | None] = []
    for _ in range(4):
        drawn.append(chooser.draw(mx.array([[0.0, 40.0, 40.0, 1.0]])).read().id)
        chooser.take(drawn[-1] or 0)
    assert [id_ in (1, 2) for id_ in drawn] == [False, False, False, True]


def test_a_marker_that_may_end_a_reply_or_a_thought_cannot_be_delayed() -> None:
    channels = cast("Reader", SimpleNamespace(ends_by_marker=True))
    with pytest.raises(UsageError, match="--min-tokens cannot be used with this model"):
        check_min_tokens(GenerationSettings(min_tokens=5), channels)
