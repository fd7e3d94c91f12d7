"""One layer's keys and values of several sequences side by side, each of them a row, to decode one
token of each in one step.

A row is prefilled in a cache of its own and then moves into a seat here. It must fit its window:
rows evict nothing except from a model's own sliding windows, so a row that fills the window goes
back to a cache of its own, which rotates. Everything counts in tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxchat.cache.ring import Entries, Mask
from mlxchat.cache.window import WindowCache

# The steps for which buffers have room.
STEPS = 64

# What happens to a buffer `(B, …)` as seats or slots come and go.
Change = Callable[[mx.array], mx.array]


@dataclass(slots=True)
class Seat:
    """A row that has been given `total` tokens. `begins` says whether it begins with the shared
    tokens."""

    total: int
    begins: bool


class Seats:
    """The slots of B `rows` of different lengths, in buffers of `capacity` slots; an empty seat is
    None. All layers whose windows have one size share it, so a step is worked out once for them.

    All rows write to the same slot, so a row's tokens are in the `size` slots before `end`. With
    `max_size`, a row sees its latest `max_size` tokens. The model gets the S slots from the longest
    row's first token on. Those that a row does not see are masked; they hold zeros, or tokens that
    it has evicted. When the buffers are full, what rows still see moves to their front.

    Rows may begin with the same `shared_tokens`, which are not in their slots; none if windows of
    this size do not share any.

    During a step, `in_use` are the slots that the model gets, the last of which is that of the
    step's tokens, and `offset: (B,)` has the RoPE position of each row's token.
    """

    def __init__(self, rows: list[Seat | None], max_size: int | None) -> None:
        self.rows = rows
        self.max_size = max_size
        self.shared_tokens = 0
        self.capacity = 0
        self.end = 0
        self.in_use = slice(0, 0)
        self.offset = mx.zeros(0, mx.int32)
        self._seen = np.zeros(0, np.int32)

    @property
    def taken(self) -> list[Seat]:
        return [row for row in self.rows if row is not None]

    @property
    def any_begins(self) -> bool:
        """Whether a row begins with the shared tokens."""
        return self.shared_tokens > 0 and any(row.begins for row in self.taken)

    def holds(self, tokens: int | None) -> bool:
        """Whether this many tokens (None: any number) evict nothing."""
        return self.max_size is None or (tokens is not None and tokens <= self.max_size)

    def size(self, row: Seat) -> int:
        """How many tokens of the row are in its slots."""
        own = row.total - self.shared_tokens if row.begins else row.total
        return own if self.max_size is None else min(own, self.max_size)

    def fit(self, windows: Sequence["RowsWindow"], size: int = 0) -> None:
        """Make room in these windows for a row of `size` tokens and a step after it."""
        if size <= self.end < self.capacity:
            return
        longest = max(map(self.size, self.taken), default=0)
        kept = slice(self.end - longest, self.end)
        self.end = max(longest, size)
        self.capacity = self.end + STEPS
        for window in windows:
            window.change(lambda x: padded(x[..., kept, :], -2, self.end - longest, STEPS))

    def begin_step(self) -> None:
        """Work out the next step. There must be room for it. An empty seat sees only its token."""
        held = np.array([0 if row is None else self.size(row) for row in self.rows], np.int32)
        self._seen = held + 1 if self.max_size is None else np.minimum(held + 1, self.max_size)
        self.offset = mx.array([0 if row is None else row.total for row in self.rows], mx.int32)
        self.end += 1
        self.in_use = slice(self.end - int(self._seen.max(initial=1)), self.end)

    def visible(self, window_size: int | None) -> np.ndarray:
        """Which of the slots in use each row's token sees, `(B, S)`. If only some rows begin with
        the shared tokens, those come first: `(B, P + S)`."""
        seen = self._seen if window_size is None else np.minimum(self._seen, window_size)
        visible = np.arange(self.in_use.start, self.end) >= self.end - seen[:, None]
        if not self.any_begins or all(row.begins for row in self.taken):
            return visible
        begins = np.array([row is not None and row.begins for row in self.rows])
        shared = np.repeat(begins[:, None], self.shared_tokens, axis=1)
        return np.concatenate([shared, visible], axis=1)


class RowsWindow:
    """Keys and values `(B, H_kv, C, D)` of one layer, for the rows in `seats`.

    Rows may begin with the same P tokens, which are then stored once and not in their slots:
    `shared` has them while a row begins so. That needs a window that evicts nothing. `attended` is
    set once the model has attended to them.

    Implements what mlx-lm's models expect of a layer's cache in a step of one token.
    """

    def __init__(self, seats: Seats, mask_dims: int) -> None:
        self.seats = seats
        self.max_size = seats.max_size
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.attended = False
        self._mask_dims = mask_dims
        self._shared = Entries()

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
        slot = slice(self.seats.end - 1, self.seats.end)
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

    def change(self, change: Change) -> None:
        """Replace the keys and values, if there are any."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = change(self.keys), change(self.values)

    def share(self, shared: Entries) -> None:
        """Store what rows may begin with from now on. No row must begin with other tokens."""
        assert self.shared is None
        mx.eval(shared.keys, shared.values)
        self._shared = shared

    def place(self, seat: int, row: Seat, entries: Entries) -> None:
        """Copy the latest entries `(1, H_kv, T, D)` of the row that takes this seat: all that it
        sees after the shared tokens."""
        keys, values = entries.keys, entries.values
        if self.keys is None and keys is not None and values is not None:
            self.keys, self.values = self._room(keys), self._room(values)
        size, end = self.seats.size(row), self.seats.end
        after = self.seats.capacity - end
        # Whole, so that nothing stays of the row before: a masked NaN would still spread.
        for ours, theirs in ((self.keys, keys), (self.values, values)):
            if ours is not None and theirs is not None:
                latest = theirs[..., theirs.shape[2] - size :, :]
                ours[seat : seat + 1] = padded(latest, -2, end - size, after)
            elif ours is not None:
                ours[seat : seat + 1] = 0

    def entries(self, seat: int, row: Seat) -> Entries:
        """The tokens of the row in this seat, in temporal order."""
        end = self.seats.end
        held = Entries(self.keys, self.values).between(end - self.seats.size(row), end)
        own = held.each(lambda x: x[seat : seat + 1])
        return self._shared.followed_by(own) if row.begins else own

    def _room(self, like: mx.array) -> mx.array:
        """Zeros for all slots of tokens like these, `(…, H, …, D)`."""
        _, heads, _, dim = like.shape
        return mx.zeros((len(self.seats.rows), heads, self.seats.capacity, dim), like.dtype)


class EndingsWindow(WindowCache):
    """A window of B texts, to be read in one step, after the tokens of another window, which are
    `shared` and stored once. The step must not evict any token. `attended` is set once the model
    has attended to the shared ones."""

    def __init__(self, start: WindowCache) -> None:
        super().__init__(start.max_size)
        self.shared = Entries(*start.entries[:2])
        self.offset = self.shared.tokens
        self.attended = False

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Mask:
        """The mask of the texts' own tokens."""
        _check_not_narrower(window_size, self.max_size)
        return super().make_mask(N, None, return_array)


def padded(x: mx.array, axis: int, before: int, after: int) -> mx.array:
    """The array with zeros before and after it along one axis."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    return mx.pad(x, widths)


def _check_not_narrower(window_size: int | None, max_size: int | None) -> None:
    """Raise ValueError for a view narrower than the window: all see the shared tokens."""
    if window_size is not None and (max_size is None or window_size < max_size):
        raise ValueError("a view narrower than the window")
