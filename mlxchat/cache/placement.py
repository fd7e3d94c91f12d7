"""What is saved of a window: its entries, and where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx

# What positions can be at all: MLX counts them in 32 bits.
MOST_POSITIONS = 2**31 - 1


class Entries(NamedTuple):
    """What a window holds, in temporal order and without padding: keys and values of T tokens, and
    the keys of the first ones as they were before they were moved."""

    keys: mx.array | None
    values: mx.array | None
    originals: mx.array | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a window's entries stand, and what comes next.

    With it each entry gets back into its own slot of the ring, so that sums run in the same order
    and the logits agree to the bit. `originals` has the tokens and the position of each run.
    """

    offset: int
    total: int
    next: int
    anchor: int
    moved: int = 0
    originals: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Placement:
        """From its fields as a file has them: lists for tuples, and nothing for an empty one.

        Raises TypeError or ValueError for what cannot be a placement.
        """
        runs = tuple((tokens, position) for tokens, position in saved.get("originals", ()))
        return cls(**{**saved, "originals": runs})

    def fits(
        self, entries: Entries, max_size: int | None, keep: int, position_limit: int | None
    ) -> bool:
        """Whether the numbers agree with the entries and with the settings of a window."""
        size = length(entries.keys)
        in_ring = size == max_size and keep <= self.next <= size
        originals = [tokens for tokens, _ in self.originals]
        positions = [position for _, position in self.originals]
        positions += [self.anchor, self.moved]
        return (
            size == length(entries.values)
            and (self.next == size or in_ring)
            and all(tokens > 0 for tokens in originals)
            and sum(originals) == length(entries.originals) <= size
            and size <= self.total
            and 0 <= self.offset < 2 * (position_limit or MOST_POSITIONS)
            and all(abs(position) <= MOST_POSITIONS for position in positions)
        )


def length(x: mx.array | None) -> int:
    """T of `(B, H_kv, T, D)`."""
    return 0 if x is None else x.shape[2]
