"""Who sits where among rows side by side, and which slots their tokens are in: the same in all
layers whose windows have one size, so it is worked out once for each step. Everything counts in
tokens.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

# Slots by which the buffers grow and shrink.
SLOTS = 64


@dataclass(slots=True)
class Seat:
    """A row that has been given `total` tokens. `begins` says whether it begins with the shared
    tokens."""

    total: int
    begins: bool


class Seats:
    """The slots of B rows of different lengths, in buffers of C slots each; an empty seat is None.

    All rows write to the same slot, so a row's tokens are in the `size` slots before it, wrapping
    around. With `max_size`, a row sees its latest `max_size` tokens. The model gets the S slots
    from the longest row's first token on or, if they wrap around, all C. Those that a row does not
    see are masked; they hold zeros, or tokens that it has evicted.

    Rows may begin with the same `shared_tokens`, which are not in their slots.

    During a step, `slot` is the one of its tokens, `in_use` are those that the model gets, and
    `offset: (B,)` has the RoPE position of each row's token.
    """

    def __init__(self, max_size: int | None) -> None:
        self.rows: list[Seat | None] = []
        self.max_size = max_size
        self.shared_tokens = 0
        self.capacity = SLOTS if max_size is None else min(SLOTS, max_size)
        self.slot = 0
        self.in_use = slice(0, self.capacity)
        self.offset = mx.zeros(0, mx.int32)
        self._seen = np.zeros(0, np.int32)
        self._next = 0

    @property
    def taken(self) -> list[Seat]:
        return [row for row in self.rows if row is not None]

    @property
    def longest(self) -> int:
        """Tokens in the longest row, the shared ones not included."""
        return max(map(self.size, self.taken), default=0)

    @property
    def any_begins(self) -> bool:
        """Whether a row begins with the shared tokens."""
        return any(row.begins for row in self.taken)

    def row(self, seat: int) -> Seat:
        """The row in this seat, which must be taken."""
        row = self.rows[seat]
        assert row is not None
        return row

    def holds(self, tokens: int | None) -> bool:
        """Whether this many tokens (None: any number) evict nothing."""
        return self.max_size is None or (tokens is not None and tokens <= self.max_size)

    def size(self, row: Seat) -> int:
        """How many tokens of the row are in its slots."""
        own = row.total - self.shared_tokens if row.begins else row.total
        return own if self.max_size is None else min(own, self.max_size)

    # Slots

    def latest(self, tokens: int) -> list[slice]:
        """The slots of the latest tokens, in temporal order: one span, or two if they wrap around.
        Slices, because an index for each slot costs a hundred times as much on a CPU."""
        begin = self._next - tokens
        if begin >= 0:
            return [slice(begin, self._next)]
        return [slice(begin + self.capacity, self.capacity), slice(0, self._next)]

    def fit(self, tokens: int) -> list[slice] | None:
        """Grow to hold rows of that many tokens, or shrink if they need much less. Returns the
        former slots of what stays, which are now the first ones; None if nothing changes."""
        slots = -(-tokens // SLOTS) * SLOTS
        if self.max_size is not None:
            slots = min(slots, self.max_size)
        if tokens <= self.capacity <= slots + SLOTS or slots == self.capacity:
            return None
        kept = min(slots, self.capacity)
        spans = self.latest(kept)
        self.capacity, self._next = slots, kept % slots
        return spans

    # Steps

    def seen_by_next(self) -> np.ndarray:
        """How many tokens each row's next token sees, itself included. An empty seat sees one."""
        seen = np.array([0 if row is None else self.size(row) for row in self.rows], np.int32) + 1
        return seen if self.max_size is None else np.minimum(seen, self.max_size)

    def begin_step(self) -> None:
        """Give each row one more token. There must be room for it."""
        self._seen = self.seen_by_next()
        self.offset = mx.array([0 if row is None else row.total for row in self.rows], mx.int32)
        self.slot = self._next
        begin = self.slot + 1 - int(self._seen.max(initial=1))
        self.in_use = slice(begin, self.slot + 1) if begin >= 0 else slice(0, self.capacity)
        self._next = (self.slot + 1) % self.capacity
        for row in self.taken:
            row.total += 1

    def visible(self, window_size: int | None) -> np.ndarray:
        """Which of the slots in use each row's token sees, `(B, S)`. If only some rows begin with
        the shared tokens, those come first: `(B, P + S)`."""
        seen = self._seen if window_size is None else np.minimum(self._seen, window_size)
        slots = np.arange(self.capacity)[self.in_use]
        visible = (self.slot - slots) % self.capacity < seen[:, None]
        if not self.any_begins or all(row.begins for row in self.taken):
            return visible
        begins = np.array([row is not None and row.begins for row in self.rows])
        shared = np.repeat(begins[:, None], self.shared_tokens, axis=1)
        return np.concatenate([shared, visible], axis=1)
