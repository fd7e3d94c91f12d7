"""Who sits where among rows side by side, and which slots their tokens are in: the same in all
layers whose windows have one size, so it is worked out once for each step. Everything counts in
tokens.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

# Slots by which the buffers grow and shrink.
SLOTS = 64


class Seats:
    """The slots of B rows of different lengths, in buffers of C slots each.

    All rows write to the same slot, so row b's tokens are in the `_sizes[b]` slots before it,
    wrapping around. With `max_size`, a row sees its latest `max_size` tokens. The model gets the S
    slots from the longest row's first token on or, if they wrap around, all C. Those that a row
    does not see are masked; they hold zeros, or tokens that it has evicted.

    Rows may begin with the same `shared_tokens`, which are not in their slots.

    During a step, `slot` is the one of its tokens, `in_use` are those that the model gets, and
    `offset: (B,)` has the RoPE position of each row's token.
    """

    def __init__(self, max_size: int | None) -> None:
        self.max_size = max_size
        self.shared_tokens = 0
        self.capacity = SLOTS if max_size is None else min(SLOTS, max_size)
        self.slot = 0
        self.in_use = slice(0, self.capacity)
        self.offset = mx.zeros(0, mx.int32)
        self._seen = np.zeros(0, np.int32)
        self._next = 0
        self._sizes = np.zeros(0, np.int32)
        self._totals = np.zeros(0, np.int32)
        self._taken = np.zeros(0, bool)
        self._begins = np.zeros(0, bool)

    def __len__(self) -> int:
        """B."""
        return len(self._sizes)

    @property
    def longest(self) -> int:
        """Tokens in the longest row, the shared ones not included."""
        return int(self._sizes.max(initial=0))

    @property
    def any_begins(self) -> bool:
        """Whether a row begins with the shared tokens."""
        return bool(self._begins.any())

    def begins(self, seat: int) -> bool:
        """Whether the row in this seat begins with the shared tokens."""
        return bool(self._begins[seat])

    def size(self, seat: int) -> int:
        """Tokens of the row in this seat, the shared ones not included."""
        return int(self._sizes[seat])

    def total(self, seat: int) -> int:
        """How many tokens the row in this seat has been given."""
        return int(self._totals[seat])

    # Rows come and go

    def holds(self, tokens: int | None) -> bool:
        """Whether this many tokens (None: any number) evict nothing."""
        return self.max_size is None or (tokens is not None and tokens <= self.max_size)

    def add(self, count: int) -> None:
        """Add empty seats."""
        self._sizes = np.append(self._sizes, np.zeros(count, np.int32))
        self._totals = np.append(self._totals, np.zeros(count, np.int32))
        self._taken = np.append(self._taken, np.zeros(count, bool))
        self._begins = np.append(self._begins, np.zeros(count, bool))

    def slots_for(self, total: int, *, begins: bool) -> int:
        """How many slots a row of `total` tokens takes, if it `begins` with the shared ones."""
        own = total - self.shared_tokens if begins else total
        return own if self.max_size is None else min(own, self.max_size)

    def take(self, seat: int, total: int, *, begins: bool) -> None:
        """Let a row of `total` tokens take an empty seat. There must be room for it."""
        self._sizes[seat] = self.slots_for(total, begins=begins)
        self._totals[seat], self._taken[seat], self._begins[seat] = total, True, begins

    def leave(self, seat: int) -> None:
        """Empty a seat."""
        self._sizes[seat], self._totals[seat] = 0, 0
        self._taken[seat], self._begins[seat] = False, False

    def keep(self, seats: Sequence[int]) -> None:
        """Remove all seats but these."""
        kept = list(seats)
        self._sizes, self._totals = self._sizes[kept], self._totals[kept]
        self._taken, self._begins = self._taken[kept], self._begins[kept]

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

    @property
    def longest_in_step(self) -> int:
        """Tokens that the longest row sees in the next step."""
        return int(self._seen_by_next().max(initial=1))

    def begin_step(self) -> None:
        """Give each row one more token. There must be room for it."""
        self._seen = self._seen_by_next()
        self.offset = mx.array(self._totals)
        self.slot = self._next
        begin = self.slot + 1 - int(self._seen.max(initial=1))
        self.in_use = slice(begin, self.slot + 1) if begin >= 0 else slice(0, self.capacity)
        self._next = (self.slot + 1) % self.capacity
        self._sizes = np.where(self._taken, self._seen, 0)
        self._totals = self._totals + self._taken

    def visible(self, window_size: int | None) -> np.ndarray:
        """Which of the slots in use each row's token sees, `(B, S)`. If only some rows begin with
        the shared tokens, those come first: `(B, P + S)`."""
        seen = self._seen if window_size is None else np.minimum(self._seen, window_size)
        slots = np.arange(self.capacity)[self.in_use]
        visible = (self.slot - slots) % self.capacity < seen[:, None]
        if self._begins.any() and not self._begins[self._taken].all():
            shared = np.repeat(self._begins[:, None], self.shared_tokens, axis=1)
            return np.concatenate([shared, visible], axis=1)
        return visible

    def _seen_by_next(self) -> np.ndarray:
        """How many tokens each row's next token sees, itself included. An empty seat sees one."""
        seen = np.where(self._taken, self._sizes, 0) + 1
        return seen if self.max_size is None else np.minimum(seen, self.max_size)
