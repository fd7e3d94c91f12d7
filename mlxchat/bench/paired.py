"""Runs in turn, A B A B, so that whatever else the machine does meets every side alike; and what
the runs of a side come to: their median, how far they lie apart, how they stand to another side's.
"""

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import mlx.core as mx

# So many done, of so many, and what is being measured now.
Tick = Callable[[int, int, str], None]

# A ratio this near to 1 is a tie, however well the runs agree.
TIE = 0.02
VERDICTS = f"Where it is neither a tie, within {TIE:.0%}, nor unclear, all runs agree."

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Spread:
    """What the runs of one side gave: the middle one, the least and the most, and how many."""

    median: float
    least: float
    most: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Side(Generic[V]):
    """One of the things to compare. `warm_up` does once, untimed, what only a first run has to."""

    name: str
    run: Callable[[], V]
    warm_up: Callable[[], object]


def interleave(sides: Sequence[Side[V]], rounds: int, tick: Tick) -> Iterator[list[list[V]]]:
    """Warm all sides up, then run each once a round, in their order; after each run, yield what
    each side has given so far. Before each, nothing of the one before is left in memory."""
    total = rounds * len(sides)
    for side in sides:
        tick(0, total, f"warming up: {side.name}")
        side.warm_up()
    values: list[list[V]] = [[] for _ in sides]
    for done in range(total):
        n = done % len(sides)
        tick(done, total, sides[n].name)
        settle()
        values[n].append(sides[n].run())
        yield [list(each) for each in values]
    tick(total, total, "")


def settle() -> None:
    """Give back what an earlier run has left in memory."""
    gc.collect()
    mx.synchronize()
    mx.clear_cache()


def ratios(values: Sequence[float], others: Sequence[float]) -> Spread | None:
    """Of each run to the other side's in the same round, so that a machine that slows down for a
    while slows both; None before there is a pair."""
    pairs = [a / b for a, b in zip(values, others, strict=False) if b]
    return Spread.of(pairs) if pairs else None


def differences(values: Sequence[float], others: Sequence[float]) -> Spread | None:
    """As `ratios`: what each run is above the other side's in the same round."""
    pairs = [a - b for a, b in zip(values, others, strict=False)]
    return Spread.of(pairs) if pairs else None


def verdict(ratio: Spread | None, more: str, less: str) -> str:
    """A ratio in a word: `more`, `less`, a tie, or unclear where the runs disagree."""
    if ratio is None:
        return ""
    if abs(ratio.median - 1) <= TIE:
        return "tie"
    if ratio.least <= 1 <= ratio.most:
        return "unclear"
    return more if ratio.median > 1 else less
