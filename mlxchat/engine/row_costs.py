"""Measures what a forward pass costs with one row and with several."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import Cache

ROWS: tuple[int, ...] = (1, 2, 4, 8, 16)

# The best of several rounds counts, because other programs can only slow a pass down.
ROUNDS = 5

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


def measure_rows(network: nn.Module, cache: Cache, id_: int) -> RowCosts:
    """Time passes with a token repeated. The cache does not change; it needs room for a draft.

    Numbers of rows that there is no time for are assumed to be as slow per row as the last one.
    """
    ends_s = time.perf_counter() + ENOUGH_S
    times_s: list[list[float]] = [[] for _ in ROWS]
    for _ in range(ROUNDS):
        for rows, taken_s in zip(ROWS, times_s, strict=True):
            if times_s[0] and time.perf_counter() > ends_s:
                break
            taken_s.append(_time_s(network, cache, [id_] * rows))
    costs: dict[int, float] = {}
    for rows, taken_s in zip(ROWS, times_s, strict=True):
        last = max(costs, default=rows)
        best_s = min(taken_s, default=costs.get(last, 0.0) * rows / last)
        # More rows never take less time.
        costs[rows] = max(best_s, costs.get(last, 0.0))
    return RowCosts(costs)


def _time_s(network: nn.Module, cache: Cache, ids: list[int]) -> float:
    began_s = time.perf_counter()
    cache.begin_draft()
    mx.eval(network(mx.array([ids]), cache=cache))
    took_s = time.perf_counter() - began_s
    cache.drop_draft()
    return took_s
