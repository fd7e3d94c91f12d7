"""Measures what a forward pass costs with one row and with several.

Each further row costs more in a longer context, so costs are measured again each time it doubles.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import Cache

ROWS: tuple[int, ...] = (1, 2, 4, 8, 16)

# The best of several rounds counts, because other programs can only slow a pass down. A round that
# improves no time by more than this ratio is the last.
ROUNDS = 5
STEADY = 0.95

# Below this many tokens held, the context hardly matters.
SHORT_CONTEXT = 1024

# After this time, no further round is begun, and no more rows are tried: nothing else happens while
# they are measured.
ENOUGH_S = 3.0


@dataclass(frozen=True)
class RowCosts:
    """The time of a forward pass by its number of rows, in seconds, and in between interpolated."""

    by_rows: Mapping[int, float]

    def of(self, rows: int) -> float:
        return self._table[rows - 1]

    @cached_property
    def _table(self) -> list[float]:
        counts = np.arange(1, max(self.by_rows) + 1)
        return np.interp(counts, list(self.by_rows), list(self.by_rows.values())).tolist()


def context_class(held: int) -> int:
    """The contexts that share their costs, by the power of two that all are shorter than."""
    return max(SHORT_CONTEXT, 1 << held.bit_length())


def measure_rows(network: nn.Module, cache: Cache, ids: Sequence[int]) -> RowCosts:
    """Time passes with the first of `ids`, at least one. They should differ as those of a text do,
    because each may need other experts. The cache does not change; it needs room for a draft.

    Numbers of rows that there is no time for are assumed to be as slow per row as the last one.
    """
    ids = list(islice(cycle(ids), ROWS[-1]))
    ends_s = time.perf_counter() + ENOUGH_S
    best_s: dict[int, float] = {}
    for _ in range(ROUNDS):
        before_s = dict(best_s)
        for rows in ROWS:
            if best_s and time.perf_counter() > ends_s:
                return _completed(best_s)
            taken_s = _time_s(network, cache, ids[:rows])
            best_s[rows] = min(taken_s, best_s.get(rows, taken_s))
        if before_s and all(best_s[rows] > STEADY * before_s[rows] for rows in ROWS):
            break
    return _completed(best_s)


def _completed(best_s: Mapping[int, float]) -> RowCosts:
    costs: dict[int, float] = {}
    for rows in ROWS:
        last = max(costs, default=rows)
        expected_s = costs.get(last, 0.0) * rows / last
        # More rows never take less time.
        costs[rows] = max(best_s.get(rows, expected_s), costs.get(last, 0.0))
    return RowCosts(costs)


def _time_s(network: nn.Module, cache: Cache, ids: list[int]) -> float:
    began_s = time.perf_counter()
    cache.begin_draft()
    mx.eval(network(mx.array([ids]), cache=cache))
    took_s = time.perf_counter() - began_s
    cache.drop_draft()
    return took_s
