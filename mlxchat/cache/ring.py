"""The stored entries of a window: keys and values `(B, H, T, D)` of its tokens, without positions.

Prefill appends in temporal order. Decode writes in place: into room to grow, then, once the window
is full, over the oldest entries that are not kept, as in a circular buffer.
"""

from __future__ import annotations

import copy

import mlx.core as mx

# Slots by which a filling buffer grows, so that most decoded tokens allocate nothing.
GROWTH = 256

# The most tokens that can be drafted at a time, and so the slots that a full buffer has for them.
DRAFT_SLOTS = 16


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
