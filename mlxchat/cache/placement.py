"""The saved form of a window: its entries and their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx

# The largest position possible: MLX counts positions in 32 bits.
MAX_POSITION = 2**31 - 1


class Entries(NamedTuple):
    """A window's keys and values, T tokens in temporal order without padding, and the original keys
    of the first ones."""

    keys: mx.array | None
    values: mx.array | None
    originals: mx.array | None = None

    @property
    def tokens(self) -> int:
        """T."""
        return length(self.keys)

    def part(self, row: int, start: int, stop: int | None = None) -> Entries:
        """Tokens `start` to `stop` of one row."""
        if self.keys is None or self.values is None:
            return Entries(None, None)
        return Entries(*(x[row : row + 1, :, start:stop, :] for x in (self.keys, self.values)))

    def followed_by(self, other: Entries) -> Entries:
        """These tokens and then the other ones."""
        if self.keys is None or self.values is None:
            return other
        if other.keys is None or other.values is None:
            return self
        return Entries(
            mx.concatenate([self.keys, other.keys], axis=2),
            mx.concatenate([self.values, other.values], axis=2),
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """The slots of a window's entries, and the slot of the next one.

    Each entry returns to its own slot of the ring, so that sums run in the same order and logits
    agree to the bit. `originals` has the token count and position of each run.
    """

    offset: int
    total: int
    next: int
    anchor: int
    moved: int = 0
    originals: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Placement:
        """Build from the fields in a file: lists instead of tuples, empty ones omitted.

        Raises TypeError or ValueError for an invalid placement.
        """
        runs = tuple((tokens, position) for tokens, position in saved.get("originals", ()))
        return cls(**{**saved, "originals": runs})

    def fits(
        self, entries: Entries, max_size: int | None, keep: int, position_limit: int | None
    ) -> bool:
        """Whether the numbers agree with the entries and with a window's settings."""
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
            and 0 <= self.offset < 2 * (position_limit or MAX_POSITION)
            and all(abs(position) <= MAX_POSITION for position in positions)
        )


def length(x: mx.array | None) -> int:
    """T of `(B, H_kv, T, D)`."""
    return 0 if x is None else x.shape[2]
