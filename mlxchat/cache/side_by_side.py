"""Several rows side by side: a model's cache to decode one token of each in a step, if it can.

A row is prefilled in a cache of its own and then moves into a seat here. It must fit its window:
rows evict nothing except from a model's own sliding windows, so a row that fills the window goes
back to a cache of its own, which rotates. Everything counts in tokens.

mlx-lm's BatchGenerator is not used: its windows forget the kept tokens, it holds whole vocabularies
of log-probabilities, and it draws before a constraint has seen the previous token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.cache import ArraysCache

from mlxchat.cache.layers import (
    Cache,
    EndingsWindow,
    LayerCache,
    after,
    check_not_narrower,
    leaves,
    most_together,
    plain_refusal,
    replaced,
    windows,
)
from mlxchat.cache.powers import install_sharing
from mlxchat.cache.ring import Entries, Mask
from mlxchat.cache.window import WindowCache

# The steps for which buffers have room.
STEPS = 64

# mlx-lm modules whose attention is `(B, H_kv, H / H_kv, T, T)`, and so are their masks.
GROUPED = {"gemma2"}

# Largest relative difference between a row's logits computed alone and side by side.
TOLERANCE = {mx.float32: 1e-3, mx.float16: 0.05, mx.bfloat16: 0.1}


@dataclass(slots=True)
class Seat:
    """A row that was given `total` tokens. `begins` is whether the shared ones are its first."""

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
    def any_begins(self) -> bool:
        """Whether a row begins with the shared tokens."""
        return self.shared_tokens > 0 and any(row is not None and row.begins for row in self.rows)

    def size(self, row: Seat | None) -> int:
        """How many tokens of the row are in its slots."""
        if row is None:
            return 0
        own = row.total - self.shared_tokens if row.begins else row.total
        return own if self.max_size is None else min(own, self.max_size)

    def fit(self, windows: Sequence["RowsWindow"], size: int = 0) -> None:
        """Make room in these windows for a row of `size` tokens and a step after it."""
        if size <= self.end < self.capacity:
            return
        longest = max(map(self.size, self.rows), default=0)
        kept = slice(self.end - longest, self.end)
        self.end = max(longest, size)
        self.capacity = self.end + STEPS
        for window in windows:
            window.change(lambda x: _padded(x[..., kept, :], -2, self.end - longest, STEPS))

    def begin_step(self) -> None:
        """Work out the next step. There must be room for it. An empty seat sees only its token."""
        seen = np.array([self.size(row) + 1 for row in self.rows], np.int32)
        self._seen = seen if self.max_size is None else np.minimum(seen, self.max_size)
        self.offset = mx.array([0 if row is None else row.total for row in self.rows], mx.int32)
        self.end += 1
        self.in_use = slice(self.end - int(self._seen.max(initial=1)), self.end)

    def visible(self, window_size: int | None) -> np.ndarray:
        """Which of the slots in use each row's token sees, `(B, S)`. If only some rows begin with
        the shared tokens, those come first: `(B, P + S)`."""
        seen = self._seen if window_size is None else np.minimum(self._seen, window_size)
        visible = np.arange(self.in_use.start, self.end) >= self.end - seen[:, None]
        if not self.any_begins or all(row is None or row.begins for row in self.rows):
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
        """Add one token to each row, `(B, H_kv, 1, D)`; return the used slots, `(…, S, D)`."""
        assert keys.shape[2] == 1, "rows are decoded one token at a time"
        self._make_room(Entries(keys, values))
        self._held.put(self.seats.end - 1, Entries(keys, values))
        return self.keys_and_values()

    @property
    def shared(self) -> Entries | None:
        """The tokens `(1, H_kv, P, D)` that rows begin with."""
        return self._shared if self.seats.any_begins else None

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What `update_and_fetch` returned last, for layers that share this layer's cache."""
        in_use = self.seats.in_use
        return self._held.between(in_use.start, in_use.stop).pair

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Mask:
        """The slots in use that each row's token sees, `(B, 1, 1, S)`, or with more dimensions;
        None if all see all. Tokens shared by only some rows come first: `(B, 1, 1, P + S)`."""
        assert N == 1, "rows are decoded one token at a time"
        if self.shared is not None:
            check_not_narrower(window_size, self.max_size)
        visible = self.seats.visible(window_size)
        if visible.all() and not return_array:
            return None
        return mx.array(visible.reshape(len(visible), *[1] * (self._mask_dims - 2), -1))

    @property
    def _held(self) -> Entries:
        return Entries(self.keys, self.values)

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return self._held.arrays

    @property
    def nbytes(self) -> int:
        """Bytes allocated, those of shared tokens included."""
        return sum(array.nbytes for array in (*self.state, *(self.shared or Entries()).arrays))

    # What follows the seats

    def change(self, change: Callable[[mx.array], mx.array]) -> None:
        """Replace the keys and values, if there are any."""
        self.keys, self.values, _ = self._held.each(change)

    def share(self, shared: Entries) -> None:
        """Store what rows may begin with from now on. No row must begin with other tokens."""
        assert self.shared is None
        mx.eval(shared.arrays)
        self._shared = shared

    def place(self, seat: int, row: Seat, entries: Entries) -> None:
        """Copy the entries `(1, H_kv, T, D)` that this seat's row sees after the shared tokens."""
        self._make_room(entries)
        size, end = self.seats.size(row), self.seats.end
        after = self.seats.capacity - end
        # Whole, so that nothing stays of the row before: a masked NaN would still spread.
        for ours, theirs in ((self.keys, entries.keys), (self.values, entries.values)):
            if ours is not None and theirs is not None:
                latest = theirs[..., theirs.shape[2] - size :, :]
                ours[seat : seat + 1] = _padded(latest, -2, end - size, after)
            elif ours is not None:
                ours[seat : seat + 1] = 0

    def entries(self, seat: int, row: Seat) -> Entries:
        """The tokens of the row in this seat, in temporal order."""
        end = self.seats.end
        held = self._held.between(end - self.seats.size(row), end)
        own = held.each(lambda x: x[seat : seat + 1])
        return self._shared.followed_by(own) if row.begins else own

    def _make_room(self, like: Entries) -> None:
        """Have slots for tokens like these, `(…, H, …, D)`."""
        if self.keys is None:
            batch, slots = len(self.seats.rows), self.seats.capacity
            self.keys, self.values, _ = like.each(
                lambda x: mx.zeros((batch, x.shape[1], slots, x.shape[3]), x.dtype)
            )


class RowsCache(list[LayerCache]):
    """One object per layer, for `model(tokens, cache=…)` with tokens `(B, 1)`: one of each seat.

    A seat is empty or has a row in it. Empty seats are computed too, and mean nothing. Rows have at
    most `max_tokens` tokens (None: any number), and share their beginning in windows that hold it.
    """

    def __init__(self, network: nn.Module, cache: Cache, max_tokens: int | None = None) -> None:
        """For rows each of which could be in this `cache`, which is empty."""
        mask_dims = 5 if type(network).__module__.rpartition(".")[2] in GROUPED else 4
        self._rows: list[Seat | None] = []
        self._max_tokens = max_tokens
        sizes = {size: Seats(self._rows, size) for size in {w.max_size for w in windows(cache)}}

        def for_rows(leaf: LayerCache) -> LayerCache:
            if isinstance(leaf, WindowCache):
                return RowsWindow(sizes[leaf.max_size], mask_dims)
            # A state of another form is refused when a row comes.
            return ArraysCache(len(getattr(leaf, "cache", ())))

        super().__init__(replaced(layer, for_rows) for layer in cache)
        self._start: Cache | None = None
        own = [leaf for leaf in leaves(self) if isinstance(leaf, RowsWindow)]
        self._groups = [(each, [w for w in own if w.seats is each]) for each in sizes.values()]

    @property
    def seats(self) -> int:
        """B."""
        return len(self._rows)

    def add(
        self, cache: Cache, row: int = 0, tokens: int | None = None, start: Cache | None = None
    ) -> int:
        """Let the sequence in `cache` take a seat, and return its number. Copies the cache.

        If the cache has several rows, that is one of them, and its first `tokens`. If the sequence
        begins with the one in `start`, that is not copied, unless rows begin with another one.
        """
        self.reserve(1)
        seat = self._rows.index(None)
        total = _total(cache) if tokens is None else tokens
        new = Seat(total, start is not None and self.begins(start))
        for seats, own in self._groups:
            seats.fit(own, seats.size(new))
        self._rows[seat] = new
        for ours, theirs in zip(leaves(self), leaves(cache), strict=True):
            if isinstance(ours, RowsWindow):
                has_shared = new.begins and ours.seats.shared_tokens > 0
                ours.place(seat, new, _entries(theirs, row, total, without_shared=has_shared))
            else:
                _seat_states(ours, seat, theirs, self.seats)
        # A lazy copy would keep the other cache alive.
        self._evaluate()
        return seat

    def leave(self, seat: int) -> None:
        """Empty a seat."""
        self._rows[seat] = None

    def compact(self) -> list[int]:
        """Remove the empty seats; return the former numbers of the others."""
        kept = [seat for seat, row in enumerate(self._rows) if row is not None]
        self._rows[:] = [self._rows[seat] for seat in kept]
        indices = mx.array(kept, mx.int32)
        self._change(lambda x: x[indices])
        self._evaluate()
        return kept

    def move_to(self, cache: Cache, seat: int) -> None:
        """Move the row in this seat to an empty cache of its own, and empty the seat."""
        row = self._rows[seat]
        assert row is not None
        for ours, theirs in zip(leaves(self), leaves(cache), strict=True):
            if isinstance(ours, RowsWindow):
                theirs.fill(ours.entries(seat, row), row.total)
            else:
                theirs.cache = [None if x is None else x[seat : seat + 1] for x in ours.cache]
        mx.eval([layer.state for layer in cache])
        self.leave(seat)

    def begin_step(self) -> None:
        """Give each row one more token. Call it before the model."""
        for seats, own in self._groups:
            seats.fit(own)
            seats.begin_step()
        for row in self._rows:
            if row is not None:
                row.total += 1

    def reserve(self, seats: int) -> None:
        """Have at least that many empty seats: adding one copies all rows."""
        missing = seats - self._rows.count(None)
        if missing > 0:
            self._rows += [None] * missing
            self._change(lambda x: _padded(x, 0, 0, missing))

    def begins(self, start: Cache) -> bool:
        """Whether a row may begin with the tokens in `start` now, which are then stored once."""
        if start is not self._start:
            if any(row is not None and row.begins for row in self._rows):
                return False
            self._start = start
            for seats, _ in self._groups:
                size, most = seats.max_size, self._max_tokens
                evicts_none = size is None or (most is not None and most <= size)
                seats.shared_tokens = _total(start) if evicts_none else 0
            for ours, theirs in zip(leaves(self), leaves(start), strict=True):
                if isinstance(ours, RowsWindow) and ours.seats.shared_tokens:
                    ours.share(Entries(*theirs.entries[:2]))
        return True

    def _change(self, change: Callable[[mx.array], mx.array]) -> None:
        for leaf in leaves(self):
            if isinstance(leaf, RowsWindow):
                leaf.change(change)
            else:
                leaf.cache = [None if x is None else change(x) for x in leaf.cache]

    def _evaluate(self) -> None:
        mx.eval([leaf.state for leaf in leaves(self)])


def find_support(
    network: nn.Module, make: Callable[[], Cache], max_tokens: int | None
) -> tuple[str | None, bool]:
    """Why the model cannot compute several rows, None if it can; and whether they share the tokens
    that they begin with. The arguments are those of `compute_alike`."""
    reason = plain_refusal(make(), "this model groups tokens by their place in the window")
    if reason is not None:
        return reason, False
    for shares in (True, False):
        if compute_alike(network, make, max_tokens, shares=shares):
            return None, shares
    return "this model computes rows of different lengths differently", False


def compute_alike(
    network: nn.Module, make: Callable[[], Cache], max_tokens: int | None, *, shares: bool
) -> bool:
    """Whether the model computes rows of at most `max_tokens` side by side as it does each alone;
    if it `shares`, with the tokens that they begin with stored once. `make` returns an empty cache.
    Runs the model on a few tokens, and then replaces its attention."""

    def read(cache: Cache, *texts: list[int]) -> Cache:
        network(mx.array(texts), cache=cache)
        mx.eval([layer.state for layer in cache])
        return cache

    start = read(make(), [2, 3, 4])
    rows = RowsCache(network, make(), max_tokens)
    together = shares and most_together(start) != 0
    try:
        if shares:
            install_sharing(network)
        texts = [[5, 6], [5, 7]] if together else [[5, 6]]
        begun = read(after(start) if together else start.fork(), *texts)
        rows.add(begun, 0, 5, start if shares else None)
        rows.add(read(make(), [4]))
        rows.begin_step()
        logits = network(mx.full((2, 1), 1), cache=rows)[:, -1, :]
        mx.eval(logits)
    except (ValueError, TypeError, RuntimeError, AttributeError):
        return False
    pairs = (([5, 6, 1], start.fork()), ([4, 1], make()))
    alone = [network(mx.array([ids]), cache=cache)[:, -1, :] for ids, cache in pairs]
    expected = mx.concatenate(alone).astype(mx.float32)
    error: Any = mx.linalg.norm(logits.astype(mx.float32) - expected) / mx.linalg.norm(expected)
    if not error.item() < TOLERANCE[logits.dtype]:
        return False
    used = [leaf for leaf in leaves(rows) if isinstance(leaf, RowsWindow) and leaf.state]
    sharing = [window for window in used if window.shared is not None]
    return not shares or (bool(sharing) and all(window.attended for window in sharing))


def _total(cache: Cache) -> int:
    """How many tokens the cache has been given. A model may have layers that it never uses."""
    return max((window.total for window in windows(cache)), default=0)


def _entries(leaf: WindowCache, row: int, total: int, *, without_shared: bool) -> Entries:
    """The entries of a row of `total` tokens; those that it shares may be among them anyway."""
    own = leaf.entries.each(lambda x: x[row : row + 1])
    if not isinstance(leaf, EndingsWindow):
        return own.between(0, total)
    own = own.between(0, total - leaf.shared.tokens)
    return own if without_shared else leaf.shared.followed_by(own)


def _seat_states(ours: ArraysCache, seat: int, theirs: ArraysCache, seats: int) -> None:
    """Copy one row's recurrent states `(1, …)` to its seat among `(B, …)`."""
    for index, new in enumerate(theirs.cache):
        held = ours.cache[index]
        if held is not None:
            held[seat : seat + 1] = 0 if new is None else new
        elif new is not None:
            room = mx.zeros((seats, *new.shape[1:]), new.dtype)
            room[seat : seat + 1] = new
            ours.cache[index] = room


def _padded(x: mx.array, axis: int, before: int, after: int) -> mx.array:
    """The array with zeros before and after it along one axis."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    return mx.pad(x, widths)
