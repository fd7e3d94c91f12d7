"""Loops are noticed: the share of repetition follows its definition. Brief texts end well."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxchat.engine.brief import up_to_a_sentence
from mlxchat.engine.reply import (
    ENTER_SHARE,
    HISTORY,
    LEAVE_SHARE,
    LOOK_BACK,
    NGRAM,
    WINDOW,
    LoopDetector,
)
from tests.conftest import examples


def detector_of(ids: list[int]) -> LoopDetector:
    detector = LoopDetector()
    for id_ in ids:
        detector.add(id_)
    return detector


def new_tokens(count: int, seed: int = 0) -> list[int]:
    """Random ids, in which hardly any pair occurs twice."""
    drawn = random.Random(seed)
    return [drawn.randrange(50_000) for _ in range(count)]


def share_by_definition(ids: list[int]) -> float:
    """The oracle: the docstring's definition, taken literally."""
    repeated = 0
    for end in range(max(len(ids) - WINDOW, NGRAM - 1), len(ids)):
        ngram = ids[end - NGRAM + 1 : end + 1]
        first = max(end - LOOK_BACK, NGRAM - 1)
        repeated += any(ids[at - NGRAM + 1 : at + 1] == ngram for at in range(first, end))
    return repeated / WINDOW


def test_a_loop_begins_at_the_upper_share_and_ends_below_the_lower_one() -> None:
    detector = detector_of([7] * 2000)
    shares_while_looping: list[float] = []
    for id_ in new_tokens(WINDOW, seed=3):
        detector.add(id_)
        if detector.looping:
            shares_while_looping.append(detector.share)
    assert min(shares_while_looping) == LEAVE_SHARE
    assert not detector.looping
    while detector.share < ENTER_SHARE:
        assert not detector.looping
        detector.add(7)
    assert detector.looping


@settings(max_examples=examples(6))
@given(
    phrases=st.integers(1, 60),
    most_tokens=st.integers(1, 40),
    # Between two occurrences of the first hundred tokens: near the end of the look-back, or not.
    gap=st.sampled_from([0, LOOK_BACK - 101, LOOK_BACK - 100, LOOK_BACK - 99]),
    seed=st.integers(0, 10**6),
)
def test_the_share_is_as_defined(phrases: int, most_tokens: int, gap: int, seed: int) -> None:
    drawn = random.Random(seed)
    known = [new_tokens(drawn.randint(1, most_tokens), seed + n) for n in range(phrases)]
    ids: list[int] = []
    while len(ids) < 500:
        ids += drawn.choice(known) if drawn.random() < 0.9 else new_tokens(3, len(ids))
    ids = [*ids, *new_tokens(gap, seed), *ids[-100:], *new_tokens(50, seed + 1)]
    assert detector_of(ids).share == share_by_definition(ids)


@settings(max_examples=examples(5))
@given(
    before=st.integers(0, 3 * HISTORY // 2),
    period=st.integers(1, 2500),
    noise=st.floats(0, 0.1),
    seed=st.integers(0, 10**6),
)
def test_the_latest_tokens_decide(before: int, period: int, noise: float, seed: int) -> None:
    """A run that is resumed has only those."""
    drawn = random.Random(seed)
    passage = new_tokens(period)
    ids = [-n if drawn.random() < noise else passage[n % period] for n in range(before + 600)]
    whole, resumed = detector_of(ids[:before]), detector_of(ids[:before][-HISTORY:])
    for id_ in ids[before:]:
        whole.add(id_)
        resumed.add(id_)
        assert resumed.share == whole.share


def test_a_text_that_is_cut_off_ends_with_a_sentence_and_no_number_of_a_list() -> None:
    decided = "Decided:\n1. It costs 4.5 euro.\n2. Bert pays 5."
    for rest in ("", "\n3.", "\n\n**3. A", "\n  c. An", " And"):
        assert up_to_a_sentence(decided + rest) == decided
    assert up_to_a_sentence("Yes. There was a long list of") == "Yes. There was a long list of …"
