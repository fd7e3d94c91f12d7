"""Runs sides in turn, A B A B, so that other load on the machine affects all of them alike, and
summarizes the runs of a side: median, spread, and ratio to another side.
"""

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import mlx.core as mx

# Number done, total number, and what is being measured now.
Tick = Callable[[int, int, str], None]

# A ratio this close to 1 is a tie, however well the runs agree.
TIE = 0.02

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Spread:
    """The runs of one side: median, minimum, maximum, and their number."""

    median: float
    min: float
    max: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """From at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Side(Generic[V]):
    """One of the things to compare. `warm_up` does, untimed, the work that only a first run has."""

    name: str
    run: Callable[[], V]
    warm_up: Callable[[], object]


def interleave(sides: Mapping[K, Side[V]], rounds: int, tick: Tick) -> Iterator[dict[K, list[V]]]:
    """Warm up all sides, then run each once per round, in order. After each run, yield the results
    so far of the sides that have some. Before each run, free the memory of the previous one."""
    total = rounds * len(sides)
    for side in sides.values():
        tick(0, total, f"warming up: {side.name}")
        side.warm_up()
    values: dict[K, list[V]] = {}
    for done, (key, side) in enumerate(list(sides.items()) * rounds):
        tick(done, total, side.name)
        settle()
        values.setdefault(key, []).append(side.run())
        yield {key: [*each] for key, each in values.items()}
    tick(total, total, "")


def settle() -> None:
    """Free the memory that an earlier run has left."""
    gc.collect()
    mx.synchronize()
    mx.clear_cache()


def ratios(values: Sequence[float], others: Sequence[float]) -> Spread | None:
    """The ratio of each run to the other side's in the same round, so that a temporary slowdown
    affects both. None before there is a pair."""
    pairs = [a / b for a, b in zip(values, others, strict=False) if b]
    return Spread.of(pairs) if pairs else None


def is_tie(ratio: Spread) -> bool:
    return abs(ratio.median - 1) <= TIE


def is_unclear(ratio: Spread) -> bool:
    """Whether the runs disagree about which side has more."""
    return ratio.min <= 1 <= ratio.max
