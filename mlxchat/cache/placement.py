"""The saved form of a window: its entries and their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx


class Entries(NamedTuple):
    """A window's keys and values, T tokens in temporal order without padding, and the original keys
    of the first ones."""

    keys: mx.array | None
    values: mx.array | None
    originals: mx.array | None = None

    @property
    def tokens(self) -> int:
        """T."""
        return 0 if self.keys is None else self.keys.shape[2]

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
        """Build from the fields in a file: lists instead of tuples."""
        runs = tuple((tokens, position) for tokens, position in saved["originals"])
        return cls(**{**saved, "originals": runs})
