"""Measures what a forward pass costs with one row and with several."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import Cache

ROWS: tuple[int, ...] = (1, 2, 4, 8, 16)

# The best of several rounds counts, because other programs can only slow a pass down.
ROUNDS = 3

# No further round is begun after this time.
ENOUGH_S = 2.0


@dataclass(frozen=True, slots=True)
class RowCosts:
    """The time of a forward pass by its number of rows, in seconds, and in between interpolated."""

    by_rows: Mapping[int, float]

    def of(self, rows: int) -> float:
        return float(np.interp(rows, list(self.by_rows), list(self.by_rows.values())))


def measure_rows(network: nn.Module, cache: Cache, id_: int) -> RowCosts:
    """Time passes with a token repeated. The cache does not change; it needs room for a draft."""
    began_s = time.perf_counter()
    _time_s(network, cache, [id_] * ROWS[-1])
    rounds = [[_time_s(network, cache, [id_] * rows) for rows in ROWS]]
    while len(rounds) < ROUNDS and time.perf_counter() - began_s < ENOUGH_S:
        rounds.append([_time_s(network, cache, [id_] * rows) for rows in ROWS])
    # More rows never take less time.
    best_s = np.maximum.accumulate(np.min(rounds, axis=0))
    return RowCosts(dict(zip(ROWS, best_s.tolist(), strict=True)))


def _time_s(network: nn.Module, cache: Cache, ids: list[int]) -> float:
    began_s = time.perf_counter()
    cache.begin_draft()
    mx.eval(network(mx.array([ids]), cache=cache))
    took_s = time.perf_counter() - began_s
    cache.drop_draft()
    return took_s
