"""Measures what a forward pass costs with one row and with several."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import Cache

ROWS = (1, 2, 4, 8, 16)

# The best of several runs counts, because other programs can only slow a run down.
RUNS = 3

# Slow models are measured once for each number of rows.
SLOW_S = 0.5


@dataclass(frozen=True, slots=True)
class RowCosts:
    """The time of a forward pass by its number of rows, in seconds, and in between interpolated."""

    by_rows: Mapping[int, float]

    def of(self, rows: int) -> float:
        return float(np.interp(rows, list(self.by_rows), list(self.by_rows.values())))


def measure_rows(network: nn.Module, cache: Cache, id_: int) -> RowCosts:
    """Time passes with a token repeated. The cache does not change; it needs room for a draft."""
    _time_s(network, cache, [id_])
    return RowCosts({rows: _best_s(network, cache, [id_] * rows) for rows in ROWS})


def _best_s(network: nn.Module, cache: Cache, ids: list[int]) -> float:
    best_s = _time_s(network, cache, ids)
    for _ in range(RUNS - 1 if best_s < SLOW_S else 0):
        best_s = min(best_s, _time_s(network, cache, ids))
    return best_s


def _time_s(network: nn.Module, cache: Cache, ids: list[int]) -> float:
    began_s = time.perf_counter()
    cache.begin_draft()
    mx.eval(network(mx.array([ids]), cache=cache))
    took_s = time.perf_counter() - began_s
    cache.drop_draft()
    return took_s
