"""The key-value cache of one attention layer: a window of the latest tokens beside the kept first.

Prefill concatenates (temporal order, the oldest trimmed first); decode writes in place into a
circular buffer. Which layers get which window is `build`'s business; what the tokens mean is
nobody's here. Everything below counts in tokens; arrays are keys and values `(B, H_kv, T, D)`.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

# A filling buffer grows by this many slots at a time, so that most decoded tokens allocate nothing.
GROWTH = 256

Mask = mx.array | str | None


class WindowCache:
    """Keys and values of at most `max_size` tokens (None: unbounded), the first `keep` never lost.

    Each new token attends to itself, to the kept tokens and to the latest others, `max_size` in
    all, in every row of a prefill step as in decode. Storage is at most `max_size + S - 1` entries
    after a prefill step of S tokens and at most `max_size` during decode.

    Implements the interface that mlx-lm's models and loops expect of a layer's cache. `offset` is
    the RoPE position of the next token. Invariants between calls:

    - the buffer's first `_size` slots are in use; the others are room to grow;
    - `_size <= _next <= capacity`, or the ring has wrapped and `_next` is the slot of the oldest
      entry that is not kept: `keep <= _next <= _size == max_size`;
    - in temporal order, entries have ascending positions and the kept ones come first.

    Source: attention sinks and cache positions from StreamingLLM (Xiao et al., 2023); the storage
    bound of trim-and-concat prefill from mlx-lm's RotatingKVCache.
    """

    def __init__(self, max_size: int | None = None, keep: int = 0) -> None:
        assert max_size is None or 0 <= keep < max_size
        self.max_size = max_size
        self.keep = keep
        self.offset = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._size = 0
        self._next = 0

    # What the model calls

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add S tokens, `(B, H_kv, S, D)`, and return all that they may attend to, `(…, T, D)`.

        T is ordered as the mask that `make_mask(S)` gave before the call.
        """
        if keys.shape[2] == 1:
            return self._decode(keys, values)
        return self._prefill(keys, values)

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Mask:
        """Mask for the next N tokens, to be called before they are added.

        Returns None (all visible), "causal", or a boolean array `(N, T)` that is true where a row
        may look. `window_size` narrows the view further to the latest that many tokens, kept ones
        not excepted: a layer with a sliding window of its own that shares this cache.
        """
        if N == 1:
            return self._decode_mask(window_size)
        held = self._held_before_prefill()
        fits = self.max_size is None or held + N <= self.max_size
        if fits and (window_size is None or held + N <= window_size) and not return_array:
            return "causal"
        rows = mx.arange(held, held + N)[:, None]
        columns = mx.arange(held + N)[None]
        mask = rows >= columns
        if self.max_size is not None:
            latest = rows - columns < self.max_size - self.keep
            mask = mask & (latest | (columns < self.keep))
        if window_size is not None:
            mask = mask & (rows - columns < window_size)
        return mask

    # Prefill: temporal order

    def _held_before_prefill(self) -> int:
        """Entries that the first row of a prefill step may still see beside itself."""
        return self._size if self.max_size is None else min(self._size, self.max_size - 1)

    def _prefill(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self._put_in_temporal_order()
        if self.keys is None or self.values is None:
            self.keys, self.values = keys, values
        else:
            surplus = self._size - self._held_before_prefill()
            self.keys = mx.concatenate([*self._without_oldest(self.keys, surplus), keys], axis=2)
            self.values = mx.concatenate(
                [*self._without_oldest(self.values, surplus), values], axis=2
            )
        self.offset += keys.shape[2]
        self._size = self._next = self.keys.shape[2]
        return self.keys, self.values

    def _without_oldest(self, x: mx.array, n: int) -> list[mx.array]:
        """Parts of `x`, which is in temporal order, that remain when the n oldest are evicted."""
        if n == 0:
            return [x]
        return [x[..., : self.keep, :], x[..., self.keep + n :, :]]

    def _put_in_temporal_order(self) -> None:
        """Undo the ring and drop the room to grow."""
        if self.keys is None or self.values is None:
            return
        self.keys, self.values = self._in_temporal_order()
        self._next = self._size

    def _in_temporal_order(self) -> tuple[mx.array, mx.array]:
        assert self.keys is not None
        assert self.values is not None
        return self._unrolled(self.keys), self._unrolled(self.values)

    def _unrolled(self, x: mx.array) -> mx.array:
        if self._next == self._size:
            # A slice even where it is the whole: decode writes into the buffer's own object.
            return x[..., : self._size, :]
        return mx.concatenate(
            [x[..., : self.keep, :], x[..., self._next :, :], x[..., self.keep : self._next, :]],
            axis=2,
        )

    # Decode: a circular buffer

    def _decode(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self.keys is None or self._next == self.keys.shape[2]:
            self._make_room(keys, values)
        assert self.keys is not None
        assert self.values is not None
        slot = self._next
        self.keys[..., slot : slot + 1, :] = keys
        self.values[..., slot : slot + 1, :] = values
        self.offset += 1
        self._next = slot + 1
        self._size = max(self._size, self._next)
        if self._size < self.keys.shape[2]:
            return self.keys[..., : self._size, :], self.values[..., : self._size, :]
        return self.keys, self.values

    def _make_room(self, keys: mx.array, values: mx.array) -> None:
        """Give `_next` a slot to point at: a new one, or once full the oldest that is not kept."""
        if self.max_size is not None and self._size >= self.max_size:
            if self._size > self.max_size:
                self._evict_down_to(self.max_size)
            self._next = self.keep
            return
        growth = GROWTH if self.max_size is None else min(GROWTH, self.max_size - self._size)
        self.keys = _grown(self.keys, keys, growth)
        self.values = _grown(self.values, values, growth)

    def _evict_down_to(self, n: int) -> None:
        assert self.keys is not None
        assert self.values is not None
        surplus = self._size - n
        self.keys = mx.concatenate(self._without_oldest(self.keys, surplus), axis=2)
        self.values = mx.concatenate(self._without_oldest(self.values, surplus), axis=2)
        self._size = self._next = n

    def _decode_mask(self, window_size: int | None) -> mx.array | None:
        if window_size is None:
            return None
        size = self._size + 1 if self.max_size is None else min(self._size + 1, self.max_size)
        if window_size >= size:
            return None
        visible = mx.arange(size) >= size - window_size
        wraps = self._size >= size
        if not wraps:
            return visible[None]
        # The token is about to be written at `newest`, and the slots behind it hold ever older
        # entries, going round: turn the temporal mask of the ring's part to match.
        newest = self.keep if self._next >= size else self._next
        ring = mx.roll(visible[self.keep :], newest - self.keep + 1)
        return mx.concatenate([visible[: self.keep], ring])[None]

    # Rewinding, and what the cache tells of itself

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        """Rewind: take back the latest n tokens and return how many there were to take.

        Works after the ring has wrapped as well; what was evicted stays gone. Where nothing but
        kept tokens remains, positions go on right behind them.
        """
        n = min(n, self._size)
        if n <= 0:
            return 0
        self._put_in_temporal_order()
        assert self.keys is not None
        assert self.values is not None
        remaining = self._size - n
        self.offset = remaining if remaining <= self.keep else self.offset - n
        self._size = self._next = remaining
        if remaining == 0:
            self.keys = self.values = None
        else:
            self.keys = self.keys[..., :remaining, :]
            self.values = self.values[..., :remaining, :]
        return n

    def size(self) -> int:
        """Tokens held now."""
        return self._size

    def empty(self) -> bool:
        return self._size == 0

    @property
    def evicted(self) -> int:
        """Tokens given to the cache, and not rewound, that it no longer holds."""
        return self.offset - self._size

    @property
    def nbytes(self) -> int:
        """Bytes allocated, room to grow included."""
        if self.keys is None or self.values is None:
            return 0
        return self.keys.nbytes + self.values.nbytes

    # State: what a snapshot stores

    @property
    def state(self) -> tuple[Any, ...]:
        """Used entries in temporal order and the numbers that place them, without padding.

        The ring's index is part of it: a restored cache puts each entry back into its own slot, so
        that sums run in the same order and the logits agree to the bit.
        """
        if self.keys is None:
            return None, None, self.offset, self.max_size, self.keep, self._next
        return *self._in_temporal_order(), self.offset, self.max_size, self.keep, self._next

    @state.setter
    def state(self, state: tuple[Any, ...]) -> None:
        keys, values, self.offset, self.max_size, self.keep, self._next = state
        self._size = 0 if keys is None else keys.shape[2]
        self.keys = None if keys is None else self._rolled(keys)
        self.values = None if values is None else self._rolled(values)

    def _rolled(self, x: mx.array) -> mx.array:
        """The inverse of `_unrolled`; a new object in any case."""
        if self._next == self._size:
            return x[..., :, :]
        older = self._size - self._next + self.keep
        return mx.concatenate(
            [x[..., : self.keep, :], x[..., older:, :], x[..., self.keep : older, :]], axis=2
        )

    @classmethod
    def from_state(cls, state: tuple[Any, ...]) -> WindowCache:
        cache = cls.__new__(cls)
        cache.state = state
        return cache


def _grown(buffer: mx.array | None, like: mx.array, slots: int) -> mx.array:
    batch, heads, _, dim = like.shape
    room = mx.zeros((batch, heads, slots, dim), dtype=like.dtype)
    return room if buffer is None else mx.concatenate([buffer, room], axis=2)
