"""Looking up earlier text: the longest match, found in constant time and bounded memory."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxchat.engine import lookup
from mlxchat.engine.lookup import KEY, MAX_MATCH, History, Match


def longest_match(ids: list[int], first: int) -> Match | None:
    """The definition, in quadratic time: from place `first` on, all places are compared."""
    best: Match | None = None
    for place in range(len(ids) - 1, first, -1):
        length = 0
        while (
            length < MAX_MATCH
            and place - length > first
            and ids[place - 1 - length] == ids[len(ids) - 1 - length]
        ):
            length += 1
        if length >= KEY and (best is None or length > best.length):
            best = Match(length, place)
    return best


@settings(deadline=None)
@given(
    steps=st.lists(st.lists(st.integers(0, 2), max_size=40), max_size=12),
    capacity=st.sampled_from([8, 32, 1024]),
)
def test_the_longest_match_is_found(steps: list[list[int]], capacity: int) -> None:
    everywhere = pytest.MonkeyPatch()
    everywhere.setattr(lookup, "CANDIDATES", 10_000)
    history, ids = History(capacity), []
    with everywhere.context():
        for number, step in enumerate(steps):
            if number % 2:
                history.extend(np.array(step, np.int32))
            else:
                for id_ in step:
                    history.add(id_)
            ids += step
            assert len(history) == min(len(ids), capacity)
            assert history.match() == longest_match(ids, max(len(ids) - capacity, 0))
    everywhere.undo()


def test_memory_is_bounded_and_old_tokens_make_way() -> None:
    history = History(1 << 12)
    rng: Any = np.random.default_rng(0)
    sizes = set()
    for _ in range(40):
        history.extend(rng.integers(0, 50_000, 1_000).astype(np.int32))
        sizes.add(history.nbytes)
    assert max(sizes) == 20 * (1 << 12)
    assert len(history) == 1 << 12


def test_one_token_at_a_time_and_all_at_once_are_the_same() -> None:
    rng: Any = np.random.default_rng(1)
    ids = rng.integers(0, 4, 3_000).astype(np.int32)
    whole, single = History(), History()
    whole.extend(ids)
    for id_ in ids.tolist():
        single.add(id_)
    for extra in rng.integers(0, 4, 300).tolist():
        assert whole.match() == single.match()
        whole.add(extra)
        single.add(extra)
