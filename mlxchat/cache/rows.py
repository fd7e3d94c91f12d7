"""Several sequences side by side, to decode one token of each in one step. Each is a row.

A row is prefilled in a cache of its own and then moves into a seat here. It must fit its window:
rows evict nothing except from a model's own sliding windows, so a row that fills the window goes
back to a cache of its own, which rotates. Everything counts in tokens.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from mlxchat.cache.endings import check_not_narrower
from mlxchat.cache.mask import Mask
from mlxchat.cache.placement import Entries

# Slots by which the buffer grows and shrinks.
SLOTS = 64


class RowsWindow:
    """Keys and values `(B, H_kv, C, D)` of one layer, for B rows of different lengths.

    All rows write to the same slot, so row b's tokens are in the `sizes[b]` slots before it,
    wrapping around. With `max_size`, a row sees its latest `max_size` tokens. The model gets the S
    slots from the longest row's first token on or, if they wrap around, all C. Those that a row
    does not see are masked; they hold zeros, or tokens that it has evicted.

    Rows may begin with the same P tokens, which are then stored once and not in their slots:
    `shared` has them while a row begins so. That needs a window that evicts nothing.

    Implements what mlx-lm's models expect of a layer's cache in a step of one token. `offset: (B,)`
    has the RoPE position of each row's next token.
    """

    def __init__(self, max_size: int | None) -> None:
        self.max_size = max_size
        self.mask_dims = 4
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._sizes = np.zeros(0, np.int32)
        self._offsets = np.zeros(0, np.int32)
        self._taken = np.zeros(0, bool)
        self._begins = np.zeros(0, bool)
        self._shared = Entries(None, None)
        self.attended = False
        self._capacity = SLOTS if max_size is None else min(SLOTS, max_size)
        self._next = 0
        self._fetched = slice(0, self._capacity)
        self._offset: mx.array | None = None

    # Called by the model

    @property
    def offset(self) -> mx.array:
        if self._offset is None:
            self._offset = mx.array(self._offsets)
        return self._offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add one token to each row, `(B, H_kv, 1, D)`, and return the slots in use,
        `(…, S, D)`."""
        assert keys.shape[2] == 1, "rows are decoded one token at a time"
        if self.keys is None or self.values is None:
            self.keys, self.values = _room(keys, self._capacity), _room(values, self._capacity)
        slot = self._next
        self.keys[..., slot : slot + 1, :] = keys
        self.values[..., slot : slot + 1, :] = values
        self._fetched = self._slots_in_use()
        self._next = (slot + 1) % self._capacity
        self._sizes = np.where(self._taken, self._seen_by_next(), 0)
        self._offsets = self._offsets + self._taken
        self._offset = None
        return self.keys_and_values()

    @property
    def shared(self) -> Entries | None:
        """The tokens `(1, H_kv, P, D)` that rows begin with."""
        return self._shared if self._begins.any() else None

    @property
    def shared_tokens(self) -> int:
        """P."""
        return self._shared.tokens

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What `update_and_fetch` returned last, for layers that share this layer's cache."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys[..., self._fetched, :], self.values[..., self._fetched, :]

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Mask:
        """The slots in use that each row's next token sees, `(B, 1, 1, S)`, or with more
        `mask_dims`; None if all see all. If only some rows begin with shared tokens, those come
        first: `(B, 1, 1, P + S)`."""
        assert N == 1, "rows are decoded one token at a time"
        seen = self._seen_by_next()
        if self.shared is not None:
            check_not_narrower(window_size, self.max_size)
        if window_size is not None:
            seen = np.minimum(seen, window_size)
        slots = np.arange(self._capacity)[self._slots_in_use()]
        some_begin = self.shared is not None and not self._begins[self._taken].all()
        if not return_array and not some_begin and (seen == len(slots)).all():
            return None
        age = (self._next - slots) % self._capacity
        visible: Any = age < seen[:, None]
        if some_begin:
            begins = np.repeat(self._begins[:, None], self._shared.tokens, axis=1)
            visible = np.concatenate([begins, visible], axis=1)
        shape = (self.seats, *[1] * (self.mask_dims - 2), visible.shape[1])
        return mx.array(visible.reshape(shape))

    def empty(self) -> bool:
        return self.keys is None

    def size(self) -> int:
        """Tokens in the longest row, the shared ones not included."""
        return int(self._sizes.max(initial=0))

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return [array for array in (self.keys, self.values) if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, those of shared tokens included."""
        shared = self.shared or ()
        return sum(array.nbytes for array in (*self.state, *shared) if array is not None)

    def _seen_by_next(self) -> np.ndarray:
        """How many tokens each row's next token sees, itself included. An empty seat sees one."""
        seen = np.where(self._taken, self._sizes, 0) + 1
        return seen if self.max_size is None else np.minimum(seen, self.max_size)

    def _slots_in_use(self) -> slice:
        """From the longest row's first token up to its next one, or all if they wrap around."""
        end = self._next + 1
        begin = end - int(self._seen_by_next().max(initial=1))
        return slice(begin, end) if begin >= 0 else slice(0, self._capacity)

    # Seats

    @property
    def seats(self) -> int:
        """B."""
        return len(self._sizes)

    def add_seats(self, count: int) -> None:
        """Add empty seats. Copies all rows."""
        self._sizes = np.append(self._sizes, np.zeros(count, np.int32))
        self._offsets = np.append(self._offsets, np.zeros(count, np.int32))
        self._taken = np.append(self._taken, np.zeros(count, bool))
        self._begins = np.append(self._begins, np.zeros(count, bool))
        self._offset = None
        if self.keys is not None and self.values is not None:
            self.keys, self.values = _with_rows(self.keys, count), _with_rows(self.values, count)

    def holds(self, tokens: int | None) -> bool:
        """Whether this many tokens (None: any number) evict nothing."""
        return self.max_size is None or (tokens is not None and tokens <= self.max_size)

    def share(self, shared: Entries) -> None:
        """Store what rows may begin with from now on. No row must begin with other tokens."""
        assert self.shared is None
        mx.eval(shared.keys, shared.values)
        self._shared = shared

    def seat(self, seat: int, entries: Entries, total: int, *, begins: bool = False) -> None:
        """Let a row of `total` tokens take an empty seat. Copies its entries `(1, H_kv, T, D)`,
        those after the shared tokens if it `begins` with them."""
        keys, values = entries.keys, entries.values
        size = 0 if keys is None else keys.shape[2]
        if self.max_size is not None and size > self.max_size:
            size = self.max_size
        self._fit(max(self.size(), size) + 1)
        if keys is not None and values is not None:
            if self.keys is None or self.values is None:
                self.keys = _room(keys, self._capacity, self.seats)
                self.values = _room(values, self._capacity, self.seats)
            # Whole, so that nothing stays of the row before: a masked NaN would still spread.
            self.keys[seat : seat + 1] = self._placed(keys, size)
            self.values[seat : seat + 1] = self._placed(values, size)
        elif self.keys is not None and self.values is not None:
            self.keys[seat] = 0
            self.values[seat] = 0
        self._sizes[seat], self._offsets[seat], self._taken[seat] = size, total, True
        self._begins[seat] = begins
        self._offset = None

    def leave(self, seat: int) -> None:
        """Empty a seat."""
        self._sizes[seat], self._offsets[seat], self._taken[seat] = 0, 0, False
        self._begins[seat] = False
        self._offset = None

    def keep(self, seats: list[int]) -> None:
        """Remove all seats but these."""
        self._sizes, self._offsets = self._sizes[seats], self._offsets[seats]
        self._taken, self._begins = self._taken[seats], self._begins[seats]
        self._offset = None
        if self.keys is not None and self.values is not None:
            kept = mx.array(seats, mx.int32)
            self.keys, self.values = self.keys[kept], self.values[kept]

    def entries(self, seat: int) -> Entries:
        """The tokens of the row in this seat, in temporal order."""
        if self.keys is None or self.values is None:
            own = Entries(None, None)
        else:
            spans, row = self._latest(int(self._sizes[seat])), slice(seat, seat + 1)
            own = Entries(_joined(self.keys[row], spans), _joined(self.values[row], spans))
        return self._shared.followed_by(own) if self._begins[seat] else own

    def total(self, seat: int) -> int:
        """How many tokens the row in this seat has been given."""
        return int(self._offsets[seat])

    def begin_step(self) -> None:
        """Make room for one more token in each row. Call it before the model."""
        self._fit(int(self._seen_by_next().max(initial=1)))

    def _fit(self, tokens: int) -> None:
        """Grow to hold rows of that many tokens, or shrink if they need much less."""
        slots = -(-tokens // SLOTS) * SLOTS
        if self.max_size is not None:
            slots = min(slots, self.max_size)
        if tokens <= self._capacity <= slots + SLOTS or slots == self._capacity:
            return
        kept = min(slots, self._capacity)
        spans = self._latest(kept)
        self._capacity, self._next = slots, kept % slots
        if self.keys is not None and self.values is not None:
            self.keys = _rearranged(self.keys, spans, slots)
            self.values = _rearranged(self.values, spans, slots)

    def _latest(self, tokens: int) -> list[slice]:
        """The slots of the latest tokens, in temporal order: one span, or two if they wrap around.
        Slices, because an index for each slot costs a hundred times as much on a CPU."""
        begin = self._next - tokens
        if begin >= 0:
            return [slice(begin, self._next)]
        return [slice(begin + self._capacity, self._capacity), slice(0, self._next)]

    def _placed(self, entries: mx.array, size: int) -> mx.array:
        """The latest `size` entries, in a row of slots."""
        row, placed = _room(entries, self._capacity), entries.shape[2] - size
        for span in self._latest(size):
            end = placed + span.stop - span.start
            row[..., span, :] = entries[..., placed:end, :]
            placed = end
        return row


def _room(like: mx.array, slots: int, rows: int | None = None) -> mx.array:
    """Zeros for tokens like these, `(B, H, slots, D)`."""
    batch, heads, _, dim = like.shape
    return mx.zeros((batch if rows is None else rows, heads, slots, dim), like.dtype)


def _with_rows(x: mx.array, count: int) -> mx.array:
    return mx.concatenate([x, mx.zeros((count, *x.shape[1:]), x.dtype)])


def _joined(x: mx.array, spans: Sequence[slice]) -> mx.array:
    return mx.concatenate([x[..., span, :] for span in spans], axis=2)


def _rearranged(x: mx.array, spans: Sequence[slice], slots: int) -> mx.array:
    """The slots in this order, and then empty ones up to `slots`."""
    kept = _joined(x, spans)
    return mx.concatenate([kept, _room(x, slots - kept.shape[2])], axis=2)
