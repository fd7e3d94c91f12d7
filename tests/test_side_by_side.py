"""Rows side by side: each sees exactly what it would see in a cache of its own, whatever comes and
goes. The matrix decodes rows of every family, or knows that they run one at a time.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn

from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache, windows
from mlxchat.cache.side_by_side import STEPS, RowsCache, Seat, Seats, compute_alike
from scripts.families import build_family
from tests.conftest import examples

WINDOW, KEEP = 48, 4


class Alone:
    """Rows side by side, and each of them in a cache of its own, to compare with."""

    def __init__(self, network: nn.Module, window: int | None = WINDOW) -> None:
        self.network = network
        self.window = window
        self.rows = RowsCache(network, self.make(), window)
        self.alone: dict[int, Cache] = {}

    def make(self) -> Cache:
        return make_cache(self.network, self.window, 0 if self.window is None else KEEP)

    def read(self, ids: Sequence[int], start: Cache | None = None) -> Cache:
        own = self.make() if start is None else start.fork()
        if len(ids):
            self.network(mx.array([[*ids]]), cache=own)
            mx.eval([layer.state for layer in own])
        return own

    def join(self, ids: Sequence[int], start: Cache | None = None) -> int:
        """After the tokens in `start`, which the rows may share."""
        own = self.read(ids, start)
        seat = self.rows.add(own, start=start)
        self.alone[seat] = own
        return seat

    def leave(self, seat: int) -> None:
        self.rows.leave(seat)
        del self.alone[seat]

    def compact(self) -> None:
        self.alone = {index: self.alone[seat] for index, seat in enumerate(self.rows.compact())}

    def check_step(self, tokens: Sequence[int]) -> None:
        """Compare one step; `tokens` has one for each seat."""
        self.rows.begin_step()
        together = self.network(mx.array([*tokens])[:, None], cache=self.rows)[:, -1, :]
        for seat, own in self.alone.items():
            expected = self.network(mx.array([[tokens[seat]]]), cache=own)[:, -1, :]
            check_close(together[seat : seat + 1], expected)

    def check_moved_out(self, seat: int, ids: Sequence[int]) -> None:
        """Compare a row that leaves the others for a cache of its own."""
        own, expected = self.make(), self.alone.pop(seat)
        self.rows.move_to(own, seat)
        for id_ in ids:
            token = mx.array([[id_]])
            check_close(self.network(token, cache=own), self.network(token, cache=expected))


def check_close(logits: mx.array, expected: mx.array) -> None:
    error: Any = (mx.abs(logits - expected).max() / mx.abs(expected).max()).item()
    assert error < 1e-3


@cache
def network_of(family: str) -> nn.Module:
    network = build_family(family)
    assert compute_alike(network, lambda: make_cache(network, None, 0), None, shares=True)
    return network


# Plain windows, sliding ones beside others, recurrent states beside windows.
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_next"])
@settings(max_examples=examples(9))
@given(st.data())
def test_rows_compute_what_they_would_alone_in_any_order_of_coming_and_going(
    family: str, data: st.DataObject
) -> None:
    both = Alone(network_of(family), data.draw(st.sampled_from([None, 24, 100])))
    most = both.window or 40
    numbers = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))

    def some(count: int) -> list[int]:
        return numbers.integers(2, 60, count).tolist()

    starts = [None, None, both.read(some(3)), both.read(some(20))]
    for _ in range(data.draw(st.integers(1, 12))):
        for seat in [x for x, own in both.alone.items() if windows(own)[0].total >= most]:
            both.check_moved_out(seat, some(2))
        act = data.draw(st.sampled_from(["join", "join", "leave", "compact", "step", "step"]))
        if act == "join":
            start = data.draw(st.sampled_from(starts))
            held = 0 if start is None else windows(start)[0].total
            both.join(some(data.draw(st.integers(0, most - 1 - held))), start)
        elif act == "step" and both.rows.seats:
            both.check_step(some(both.rows.seats))
        elif act == "leave" and both.alone:
            both.leave(data.draw(st.sampled_from(sorted(both.alone))))
        elif act == "compact" and both.alone:
            both.compact()


TOTALS = st.lists(st.none() | st.integers(0, 20), min_size=1, max_size=5)
SIZES = st.none() | st.integers(1, 20)


@given(totals=TOTALS, max_size=SIZES, window_size=SIZES)
def test_a_row_sees_its_latest_tokens_as_far_as_its_window_reaches(
    totals: list[int | None], max_size: int | None, window_size: int | None
) -> None:
    rows = [None if total is None else Seat(total, begins=False) for total in totals]
    seats = Seats(rows, max_size)
    seats.fit([], max(map(seats.size, rows)))
    seats.begin_step()
    for total, visible in zip(totals, seats.visible(window_size).tolist(), strict=True):
        # With the step's own token, which is all that an empty seat sees.
        seen = min((total or 0) + 1, max_size or 99, window_size or 99)
        assert visible == [False] * (len(visible) - seen) + [True] * seen


def test_a_seat_forgets_the_row_before_even_if_it_held_nan() -> None:
    """A masked NaN still spreads: zero times NaN is NaN."""
    both = Alone(network_of("llama"))
    seat = both.join(range(2, 40))
    both.join([3, 4])
    for layer in both.rows:
        layer.values[seat] = float("nan")
    both.leave(seat)
    assert both.join([5, 6]) == seat
    both.check_step([7, 8])


def test_buffers_shrink_after_a_long_row_has_left() -> None:
    both = Alone(network_of("llama"), None)
    long = both.join([5] * 700)
    both.join([2, 3, 4])
    size = both.rows[1].nbytes
    both.leave(long)
    both.join([5])
    for _ in range(STEPS + 1):
        both.check_step([6] * both.rows.seats)
    assert both.rows[1].nbytes < size / 4
