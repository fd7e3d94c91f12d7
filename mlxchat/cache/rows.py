"""Several sequences side by side, to decode one token of each in one step. Each is a row.

A row is prefilled in a cache of its own and then moves into a seat here. It must fit its window:
rows evict nothing except from a model's own sliding windows, so a row that fills the window goes
back to a cache of its own, which rotates. Everything counts in tokens.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from mlxchat.cache.mask import Mask
from mlxchat.cache.placement import Entries
from mlxchat.cache.seats import Seats


class RowsWindow:
    """Keys and values `(B, H_kv, C, D)` of one layer, for the rows in `seats`.

    Rows may begin with the same P tokens, which are then stored once and not in their slots:
    `shared` has them while a row begins so. That needs a window that evicts nothing.

    Implements what mlx-lm's models expect of a layer's cache in a step of one token.
    """

    def __init__(self, seats: Seats, mask_dims: int) -> None:
        self.seats = seats
        self.max_size = seats.max_size
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.attended = False
        self._mask_dims = mask_dims
        self._shared = Entries(None, None)

    # Called by the model

    @property
    def offset(self) -> mx.array:
        """The RoPE position of each row's token, `(B,)`."""
        return self.seats.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add one token to each row, `(B, H_kv, 1, D)`, and return the slots in use,
        `(…, S, D)`."""
        assert keys.shape[2] == 1, "rows are decoded one token at a time"
        if self.keys is None or self.values is None:
            self.keys, self.values = self._room(keys), self._room(values)
        slot = slice(self.seats.slot, self.seats.slot + 1)
        self.keys[..., slot, :] = keys
        self.values[..., slot, :] = values
        return self.keys_and_values()

    @property
    def shared(self) -> Entries | None:
        """The tokens `(1, H_kv, P, D)` that rows begin with."""
        return self._shared if self.seats.any_begins else None

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What `update_and_fetch` returned last, for layers that share this layer's cache."""
        assert self.keys is not None
        assert self.values is not None
        in_use = self.seats.in_use
        return self.keys[..., in_use, :], self.values[..., in_use, :]

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Mask:
        """The slots in use that each row's token sees, `(B, 1, 1, S)`, or with more dimensions;
        None if all see all. If only some rows begin with shared tokens, those come first:
        `(B, 1, 1, P + S)`."""
        assert N == 1, "rows are decoded one token at a time"
        if self.shared is not None:
            _check_not_narrower(window_size, self.max_size)
        visible = self.seats.visible(window_size)
        if visible.all() and not return_array:
            return None
        return mx.array(visible.reshape(len(visible), *[1] * (self._mask_dims - 2), -1))

    def empty(self) -> bool:
        return self.keys is None

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return [array for array in (self.keys, self.values) if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, those of shared tokens included."""
        shared = self.shared or ()
        return sum(array.nbytes for array in (*self.state, *shared) if array is not None)

    # What follows the seats

    def change(self, change: Callable[[mx.array], mx.array]) -> None:
        """Replace the keys and values `(B, H_kv, C, D)`, if there are any: seats come or go."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = change(self.keys), change(self.values)

    def rearrange(self, spans: Sequence[slice]) -> None:
        """Move these slots to the beginning of buffers as large as the seats need now."""

        def rearranged(x: mx.array) -> mx.array:
            kept = _joined(x, spans)
            return mx.concatenate([kept, self._room(x)[..., kept.shape[2] :, :]], axis=2)

        self.change(rearranged)

    def share(self, shared: Entries) -> None:
        """Store what rows may begin with from now on. No row must begin with other tokens."""
        assert self.shared is None
        mx.eval(shared.keys, shared.values)
        self._shared = shared

    def place(self, seat: int, entries: Entries) -> None:
        """Copy the entries `(1, H_kv, T, D)` of the row that has taken this seat: those after the
        shared tokens, if it begins with them."""
        keys, values = entries.keys, entries.values
        if self.keys is None and keys is not None and values is not None:
            rows = len(self.seats.rows)
            self.keys, self.values = self._room(keys, rows), self._room(values, rows)
        # Whole, so that nothing stays of the row before: a masked NaN would still spread.
        for ours, theirs in ((self.keys, keys), (self.values, values)):
            if ours is not None:
                ours[seat : seat + 1] = 0 if theirs is None else self._placed(theirs, seat)

    def entries(self, seat: int) -> Entries:
        """The tokens of the row in this seat, in temporal order."""
        if self.keys is None or self.values is None:
            own = Entries(None, None)
        else:
            spans = self.seats.latest(self.seats.size(self.seats.row(seat)))
            row = slice(seat, seat + 1)
            own = Entries(_joined(self.keys[row], spans), _joined(self.values[row], spans))
        return self._shared.followed_by(own) if self.seats.row(seat).begins else own

    def _placed(self, entries: mx.array, seat: int) -> mx.array:
        """The latest entries, in a row of slots."""
        size = self.seats.size(self.seats.row(seat))
        row, placed = self._room(entries), entries.shape[2] - size
        assert placed >= 0, "fewer entries than the row has tokens"
        for span in self.seats.latest(size):
            end = placed + span.stop - span.start
            row[..., span, :] = entries[..., placed:end, :]
            placed = end
        return row

    def _room(self, like: mx.array, rows: int | None = None) -> mx.array:
        """Zeros for all slots of tokens like these, `(B, H, C, D)`."""
        batch, heads, _, dim = like.shape
        shape = (batch if rows is None else rows, heads, self.seats.capacity, dim)
        return mx.zeros(shape, like.dtype)


class EndingsWindow:
    """Keys and values `(B, H_kv, S, D)` of one layer, for B texts after the `shared` tokens, which
    are stored once.

    Implements what mlx-lm's models expect of a layer's cache in a single step, which must not evict
    any token. `attended` is set once the model has attended to the shared tokens.
    """

    def __init__(self, shared: Entries, max_size: int | None) -> None:
        self.shared = shared
        self.offset = shared.tokens
        self.max_size = max_size
        self.attended = False
        self._own = Entries(None, None)

    # Called by the model

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Take the own tokens and return them."""
        self._own = Entries(keys, values)
        self.offset += keys.shape[2]
        return keys, values

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """The own tokens, for layers that share this layer's cache."""
        assert self._own.keys is not None
        assert self._own.values is not None
        return self._own.keys, self._own.values

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Mask:
        """The mask of the own tokens."""
        _check_not_narrower(window_size, self.max_size)
        if return_array:
            return mx.tri(N, dtype=mx.bool_)
        return None if N == 1 else "causal"

    def empty(self) -> bool:
        return self.offset == 0

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return [array for array in self._own if array is not None]

    # Its rows

    def part(self, row: int, start: int, stop: int) -> Entries:
        """Tokens `start` to `stop` of a row, the shared ones included."""
        shared = self.shared.tokens
        own = self._own.part(row, max(start - shared, 0), stop - shared)
        return own if start >= shared else self.shared.part(0, start).followed_by(own)


def _check_not_narrower(window_size: int | None, max_size: int | None) -> None:
    """Raise ValueError for a view narrower than the window: all see the shared tokens."""
    if window_size is not None and (max_size is None or window_size < max_size):
        raise ValueError("a view narrower than the window")


def _joined(x: mx.array, spans: Sequence[slice]) -> mx.array:
    return mx.concatenate([x[..., span, :] for span in spans], axis=2)
