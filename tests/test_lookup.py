"""Looking up earlier text: the longest match, found in constant time and bounded memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxchat.engine import drafts
from mlxchat.engine.drafts import KEY, MAX_MATCH, History, Match


def longest_match(ids: list[int]) -> Match | None:
    """The definition, in quadratic time: all places are compared."""
    best: Match | None = None
    for place in range(len(ids) - 1, 0, -1):
        length = 0
        while (
            length < MAX_MATCH
            and place > length
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
    everywhere.setattr(drafts, "CANDIDATES", 10_000)
    history, ids = History(capacity), []
    with everywhere.context():
        for number, step in enumerate(steps):
            if number % 2:
                history.extend(np.array(step, np.int32))
            else:
                for id_ in step:
                    history.add(id_)
            ids += step
            assert min(len(ids), capacity // 2) <= len(history) <= capacity
            assert history.match() == longest_match(ids[len(ids) - len(history) :])
    everywhere.undo()
