"""The stored entries of a window: keys and values `(B, H, T, D)` of its tokens, without positions.

Prefill appends in temporal order. Decode writes in place: into room to grow, then, once the window
is full, over the oldest entries that are not kept, as in a circular buffer.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx

# Slots by which a filling buffer grows, so that most decoded tokens allocate nothing.
GROWTH = 256

# The most tokens that can be drafted at a time, and so the slots that a full buffer has for them.
DRAFT_SLOTS = 16


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


# What next tokens see: None (all entries), "causal", or a boolean array `(N, T)`, true for the
# visible ones.
Mask = mx.array | str | None


class Ring:
    """Entries of at most `max_size` tokens (None: unbounded), or more right after a prefill step.
    The first `keep` stay in place.

    Invariants between calls:

    - the first `size` slots of the buffer are in use; the next `drafted` hold drafted tokens; the
      others are room to grow;
    - `size <= next <= capacity`, so the entries are in temporal order, or the buffer has wrapped,
      and `next` is the slot of the oldest entry that is not kept:
      `keep <= next <= size == max_size`.
    """

    def __init__(self, max_size: int | None, keep: int) -> None:
        self.max_size = max_size
        self.keep = keep
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.size = 0
        self.next = 0
        self.drafted = 0

    @property
    def is_full(self) -> bool:
        return self.size == self.max_size

    @property
    def seen_by_next(self) -> int:
        """The number of entries that the next token sees, not counting itself."""
        return self.size if self.max_size is None else min(self.size, self.max_size - 1)

    @property
    def capacity(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, including room to grow."""
        return sum(array.nbytes for array in (self.keys, self.values) if array is not None)

    def used(self) -> tuple[mx.array, mx.array]:
        """Keys and values of all entries and drafted tokens, in the order of the slots."""
        assert self.keys is not None
        assert self.values is not None
        used = self.size + self.drafted
        if used == self.capacity:
            return self.keys, self.values
        return self.keys[..., :used, :], self.values[..., :used, :]

    def copy(self) -> Ring:
        """An independent copy; arrays are copied only when either side writes."""
        other = copy.copy(self)
        other.keys = None if self.keys is None else self.keys[..., :, :]
        other.values = None if self.values is None else self.values[..., :, :]
        return other

    def repeat(self, rows: int) -> None:
        """Turn one row into several, all alike."""
        if self.keys is not None and self.values is not None:
            self.keys = mx.repeat(self.keys, rows, axis=0)
            self.values = mx.repeat(self.values, rows, axis=0)

    # Adding tokens

    def append(self, keys: mx.array, values: mx.array) -> None:
        """Add tokens `(B, H, S, D)` in temporal order."""
        self.unroll()
        if self.keys is not None and self.values is not None:
            keys = mx.concatenate([self.keys, keys], axis=2)
            values = mx.concatenate([self.values, values], axis=2)
        self.keys, self.values = keys, values
        self.size = self.next = keys.shape[2]

    def write(self, keys: mx.array, values: mx.array) -> None:
        """Add one token, `(B, H, 1, D)`, in place of the oldest that is not kept if it is full."""
        if self.is_full and self.next == self.max_size:
            self.next = self.keep
        elif self.next == self.capacity:
            limit = self.next + GROWTH if self.max_size is None else self.max_size
            self._grow(keys, values, limit)
        self._put(self.next, keys, values)
        self.next += 1
        self.size = max(self.size, self.next)

    def draft(self, keys: mx.array, values: mx.array) -> None:
        """Write tokens `(B, H, S, D)`, at most DRAFT_SLOTS, after the others until `settle`."""
        stop = self.size + keys.shape[2]
        if self.capacity < stop:
            limit = stop + GROWTH if self.max_size is None else self.max_size + DRAFT_SLOTS
            self._grow(keys, values, limit)
        self._put(self.size, keys, values)
        self.drafted = keys.shape[2]

    def settle(self, accepted: int) -> None:
        """Keep the first `accepted` drafted tokens, and forget the others."""
        self.drafted = 0
        if not self.is_full:
            self.size = self.next = self.size + accepted
            return
        assert self.keys is not None
        assert self.values is not None
        start, stop = self.size, self.size + accepted
        # Products, because with a slice the buffer would be copied to be written to.
        keys, values = self.keys[..., start:stop, :] * 1, self.values[..., start:stop, :] * 1
        first = 0
        while first < accepted:
            slot = self.keep if self.next == self.size else self.next
            last = min(accepted, first + self.size - slot)
            self._put(slot, keys[..., first:last, :], values[..., first:last, :])
            self.next = slot + last - first
            first = last

    def _put(self, slot: int, keys: mx.array, values: mx.array) -> None:
        assert self.keys is not None
        assert self.values is not None
        stop = slot + keys.shape[2]
        self.keys[..., slot:stop, :] = keys
        self.values[..., slot:stop, :] = values

    def _grow(self, keys: mx.array, values: mx.array, limit: int) -> None:
        """Add slots for tokens like these: GROWTH, or fewer up to a capacity of `limit`."""
        slots = min(GROWTH, limit - self.capacity)
        self.keys = _grown(self.keys, keys, slots)
        self.values = _grown(self.values, values, slots)

    # What the next tokens see. A `window_size` narrows that to the latest tokens, that many
    # with the kept ones.

    def prefill_mask(self, n: int, window_size: int | None, *, return_array: bool) -> Mask:
        """The mask for `n` tokens that will be appended.

        Each row sees itself, the kept tokens and the latest others, `max_size` in all.
        """
        held = self.seen_by_next
        if self._fits(held + n, window_size) and not return_array:
            return "causal"
        rows = mx.arange(held, held + n)[:, None]
        return self._visible(rows, mx.arange(held + n)[None], window_size)

    def decode_mask(self, window_size: int | None, *, in_order: bool) -> Mask:
        """The mask for one token. It will be written in place, unless the window stays
        `in_order`."""
        size = self.size + 1 if self.max_size is None else min(self.size + 1, self.max_size)
        if window_size is None or window_size >= size:
            return None
        visible = mx.arange(size) >= size - window_size
        if in_order or self.size < size:
            return visible[None]
        newest = self.keep if self.next >= size else self.next
        # From `newest` on, slots hold ever later entries, wrapping around: the mask must match.
        rotated = mx.roll(visible[self.keep :], newest - self.keep + 1)
        return mx.concatenate([visible[: self.keep], rotated])[None]

    def draft_mask(self, n: int, window_size: int | None, *, return_array: bool) -> Mask:
        """The mask for `n` drafted tokens, which will be written after the others.

        Each row sees what it would see if the rows before it had been added one by one, each
        evicting the oldest entry of a full window.
        """
        size, keep = self.size, self.keep
        if self._fits(size + n, window_size) and not return_array:
            return None if n == 1 else "causal"
        slots = mx.arange(size + n)[None]
        in_ring = (slots >= keep) & (slots < size)
        oldest = keep if self.next >= size else self.next
        order = mx.where(in_ring, keep + (slots - oldest) % max(size - keep, 1), slots)
        mask = self._visible(mx.arange(size, size + n)[:, None], order, window_size)
        # deepseek_v32 takes the columns it attends to from the mask of a single row.
        return mask[None, None] if n == 1 else mask

    def _fits(self, tokens: int, window_size: int | None) -> bool:
        return all(limit is None or tokens <= limit for limit in (self.max_size, window_size))

    def _visible(self, rows: mx.array, columns: mx.array, window_size: int | None) -> mx.array:
        """Whether each of the rows `(N, 1)` sees the columns `(1, T)`, both numbered in temporal
        order."""
        visible = rows >= columns
        if self.max_size is not None:
            latest = rows - columns < self.max_size - self.keep
            visible = visible & (latest | (columns < self.keep))
        if window_size is not None:
            visible = visible & (rows - columns < window_size)
        return visible

    # Temporal order, and removing tokens

    def unroll(self) -> None:
        """Put the entries in temporal order, and drop the room to grow."""
        if self.keys is None or self.values is None:
            return
        self.keys, self.values = self.unrolled(self.keys), self.unrolled(self.values)
        self.next = self.size

    def drop(self, start: int, stop: int) -> None:
        """Remove tokens `start` to `stop`. Needs temporal order."""
        assert self.keys is not None
        assert self.values is not None
        self.keys = _without(self.keys, start, stop)
        self.values = _without(self.values, start, stop)
        self.size = self.next = self.size - (stop - start)
        if self.size == 0:
            self.keys = self.values = None

    def drop_room(self) -> None:
        """Drop the room to grow."""
        assert self.keys is not None
        assert self.values is not None
        self.keys, self.values = self.keys[..., : self.size, :], self.values[..., : self.size, :]

    def restore(self, keys: mx.array | None, values: mx.array | None, next: int) -> None:
        """Hold these entries, which are in temporal order, with `next` as it was."""
        self.size, self.next, self.drafted = 0 if keys is None else keys.shape[2], next, 0
        self.keys = None if keys is None else self.rolled(keys)
        self.values = None if values is None else self.rolled(values)

    def unrolled(self, x: mx.array) -> mx.array:
        """The entries of a buffer in temporal order."""
        keep, next, size = self.keep, self.next, self.size
        if next == size:
            # A slice even of the whole: decode writes into the buffer object itself.
            return x[..., :size, :]
        return mx.concatenate(
            [x[..., :keep, :], x[..., next:size, :], x[..., keep:next, :]], axis=2
        )

    def rolled(self, x: mx.array) -> mx.array:
        """The inverse of `unrolled`; always a new object."""
        keep, next, size = self.keep, self.next, self.size
        if next == size:
            return x[..., :, :]
        older = size - next + keep
        return mx.concatenate([x[..., :keep, :], x[..., older:, :], x[..., keep:older, :]], axis=2)


def _without(x: mx.array, start: int, stop: int) -> mx.array:
    return mx.concatenate([x[..., :start, :], x[..., stop:, :]], axis=2)


def _grown(buffer: mx.array | None, like: mx.array, slots: int) -> mx.array:
    """The buffer with `slots` more slots; `like` has its other dimensions and dtype."""
    batch, heads, _, dim = like.shape
    room = mx.zeros((batch, heads, slots, dim), dtype=like.dtype)
    return room if buffer is None else mx.concatenate([buffer, room], axis=2)
