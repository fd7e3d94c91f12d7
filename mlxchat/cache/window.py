"""The key-value cache of one attention layer: a window of the latest tokens beside the kept first.

Prefill concatenates (temporal order, the oldest trimmed first); decode writes in place into a
circular buffer. Positions are the cache's own: the kept tokens sit right before the window, and
the offset stays bounded. Which layers get which window is `build`'s business; what the tokens mean
is nobody's here. Everything counts in tokens; arrays are keys and values `(B, H_kv, T, D)`.
"""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx

from mlxchat.cache.positions import NO_POSITIONS, KeyShift
from mlxchat.errors import CacheError

# A filling buffer grows by this many slots at a time, so that most decoded tokens allocate nothing.
GROWTH = 256

# In decode the kept tokens are moved up to the window after this many evictions: one small rotation
# of K keys a layer, while the gap of positions between them and the window stays below it.
REANCHOR_EVERY = 64

Mask = mx.array | str | None


class WindowCache:
    """Keys and values of at most `max_size` tokens (None: unbounded), the first `keep` never lost.

    Each new token attends to itself, to the kept tokens and to the latest others, `max_size` in
    all, in every row of a prefill step as in decode. Storage is at most `max_size + S - 1` entries
    after a prefill step of S tokens and at most `max_size` during decode, beside the kept tokens'
    original keys.

    `shift` moves keys to other positions; None where the layer's rope does not allow it, and then
    positions are the text's. Before `offset` would come to `position_limit`, all keys are moved
    back: every layer of a model needs the same limit, since some read one layer's offset for all.

    Implements the interface that mlx-lm's models and loops expect of a layer's cache. `offset` is
    the RoPE position of the next token, `total` the number of tokens ever given (rewound ones
    taken off). Invariants between calls:

    - the buffer's first `_size` slots are in use; the others are room to grow;
    - `_size <= _next <= capacity`, or the ring has wrapped and `_next` is the slot of the oldest
      entry that is not kept: `keep <= _next <= _size == max_size`;
    - in temporal order the entries that are not kept have consecutive positions up to `offset`;
    - the kept entries stand at the positions `_anchor`, `_anchor + 1`, …: their `_originals`,
      which stood at 0, 1, …, moved by that.

    Source: attention sinks and cache positions from StreamingLLM (Xiao et al., 2023); the storage
    bound of trim-and-concat prefill from mlx-lm's RotatingKVCache.
    """

    def __init__(
        self,
        max_size: int | None = None,
        keep: int = 0,
        shift: KeyShift | None = None,
        position_limit: int | None = None,
    ) -> None:
        assert max_size is None or 0 <= keep < max_size
        self.max_size = max_size
        self.keep = keep
        self.shift = shift
        self.position_limit = position_limit
        self.offset = 0
        self.total = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._size = 0
        self._next = 0
        self._anchor = 0
        self._originals: mx.array | None = None

    # What the model calls

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add S tokens, `(B, H_kv, S, D)`, and return all that they may attend to, `(…, T, D)`.

        T is ordered as the mask that `make_mask(S)` gave before the call.
        """
        added = keys.shape[2]
        fetched = self._decode(keys, values) if added == 1 else self._prefill(keys, values)
        self.offset += added
        self.total += added
        if self.position_limit is not None and self.offset >= self.position_limit:
            # Between two steps of this layer: what was fetched still fits the step's queries.
            self._rebase(self.position_limit // 2)
        return fetched

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
            self._evict_down_to(self._held_before_prefill())
            self._reanchor()
            self.keys = mx.concatenate([self.keys, keys], axis=2)
            self.values = mx.concatenate([self.values, values], axis=2)
        self._size = self._next = self.keys.shape[2]
        return self.keys, self.values

    def _put_in_temporal_order(self) -> None:
        """Undo the ring and drop the room to grow."""
        if self.keys is None or self.values is None:
            return
        self.keys, self.values = self._unrolled(self.keys), self._unrolled(self.values)
        self._next = self._size

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
        elif self._size == self.max_size:
            self._reanchor(REANCHOR_EVERY)
        assert self.keys is not None
        assert self.values is not None
        slot = self._next
        self.keys[..., slot : slot + 1, :] = keys
        self.values[..., slot : slot + 1, :] = values
        self._next = slot + 1
        self._size = max(self._size, self._next)
        if self._size < self.keys.shape[2]:
            return self.keys[..., : self._size, :], self.values[..., : self._size, :]
        return self.keys, self.values

    def _make_room(self, keys: mx.array, values: mx.array) -> None:
        """Give `_next` a slot to point at: a new one, or once full the oldest that is not kept."""
        if self.max_size is not None and self._size >= self.max_size:
            self._evict_down_to(self.max_size)
            self._reanchor(REANCHOR_EVERY)
            self._next = self.keep
            return
        growth = GROWTH if self.max_size is None else min(GROWTH, self.max_size - self._size)
        self.keys = _grown(self.keys, keys, growth)
        self.values = _grown(self.values, values, growth)

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

    # Evicting, rewinding

    def _evict_down_to(self, n: int) -> None:
        """Drop the oldest entries that are not kept; needs temporal order."""
        if self._size > n:
            self._drop(self.keep, self.keep + self._size - n)

    def _drop(self, start: int, stop: int) -> None:
        assert self.keys is not None
        assert self.values is not None
        self.keys = _without(self.keys, start, stop)
        self.values = _without(self.values, start, stop)
        self._size = self._next = self._size - (stop - start)

    def evict(self, start: int, stop: int) -> None:
        """Drop the entries `start` to `stop` in temporal order; those behind them move up.

        Raises CacheError for kept entries, and where this layer's keys cannot be shifted.
        """
        if not self.keep <= start <= stop <= self._size:
            raise CacheError(
                f"cannot evict tokens {start} to {stop}: of {self._size} held, "
                f"the first {self.keep} are kept"
            )
        if start == stop:
            return
        if self.shift is None:
            raise CacheError("this layer's keys cannot be shifted, so no span can be evicted")
        self._put_in_temporal_order()
        self._drop(start, stop)
        assert self.keys is not None
        moved = self.shift(self.keys[..., start:, :], start - stop)
        self.keys = mx.concatenate([self.keys[..., :start, :], moved], axis=2)
        self.offset -= stop - start

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
        self.keys = self.keys[..., :remaining, :]
        self.values = self.values[..., :remaining, :]
        self._size = self._next = remaining
        self.total -= n
        self.offset -= n
        if remaining <= self.keep:
            # Back to where they were given: what comes next may be among the kept itself.
            self.offset = remaining
            self._reanchor()
            self._originals = None
        if remaining == 0:
            self.keys = self.values = None
            self.total = 0
        return n

    # Positions

    def _kept_originals(self) -> mx.array:
        """The kept keys as they were given, stored when they are about to be moved first."""
        if self._originals is None:
            assert self.keys is not None
            # A product, because a slice would hold on to the whole buffer.
            self._originals = self.keys[..., : self.keep, :] * 1
        return self._originals

    def _reanchor(self, tolerance: int = 1) -> None:
        """Move the kept entries to right before the window, if they are `tolerance` behind it.

        Always from their originals: a key that is rotated again and again in half precision drifts.
        """
        distance = self.offset - self._size
        if abs(distance - self._anchor) < tolerance or self.shift is None:
            return
        assert self.keys is not None
        kept = min(self.keep, self._size)
        if kept:
            moved = self.shift(self._kept_originals()[..., :kept, :], distance)
            self.keys[..., :kept, :] = moved
        self._anchor = distance

    def _rebase(self, offset: int) -> None:
        """Move all keys so that the next token gets the position `offset`."""
        assert self.shift is not None
        assert self.keys is not None
        distance = offset - self.offset
        self._kept_originals()
        # Not in place: the step that is under way holds the keys where they were.
        self.keys = self.shift(self.keys, distance)
        self.offset = offset
        self._anchor += distance

    # What the cache tells of itself

    def size(self) -> int:
        """Tokens held now."""
        return self._size

    def empty(self) -> bool:
        return self._size == 0

    @property
    def evicted(self) -> int:
        """Tokens given to the cache, and not rewound, that it no longer holds."""
        return self.total - self._size

    @property
    def gap(self) -> int:
        """Positions between the last kept token and the window, of which there should be none."""
        return self.offset - self._size - self._anchor

    @property
    def nbytes(self) -> int:
        """Bytes allocated, room to grow included."""
        arrays = (self.keys, self.values, self._originals)
        return sum(array.nbytes for array in arrays if array is not None)

    # State: what a snapshot stores

    def copy(self) -> WindowCache:
        """A cache that goes its own way from here; whichever writes first copies the window."""
        other = copy.copy(self)
        other.keys = None if self.keys is None else self.keys[..., :, :]
        other.values = None if self.values is None else self.values[..., :, :]
        return other

    @property
    def state(self) -> tuple[Any, ...]:
        """Used entries in temporal order and the numbers that place them, without padding.

        The ring's index is part of it: a restored cache puts each entry back into its own slot, so
        that sums run in the same order and the logits agree to the bit.
        """
        shift = self.shift or NO_POSITIONS
        return (
            None if self.keys is None else self._unrolled(self.keys),
            None if self.values is None else self._unrolled(self.values),
            self._originals,
            *(self.max_size, self.keep, self.position_limit),
            *(self.offset, self.total, self._next, self._anchor),
            *(self.shift is not None, shift.dims, shift.traditional, shift.base, shift.scale),
            shift.freqs,
        )

    @state.setter
    def state(self, state: tuple[Any, ...]) -> None:
        keys, values, self._originals, *numbers = state
        self.max_size, self.keep, self.position_limit, *numbers = numbers
        self.offset, self.total, self._next, self._anchor, *numbers = numbers
        has_shift, *shift = numbers
        self.shift = KeyShift(*shift) if has_shift else None
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


def _without(x: mx.array, start: int, stop: int) -> mx.array:
    return mx.concatenate([x[..., :start, :], x[..., stop:, :]], axis=2)


def _grown(buffer: mx.array | None, like: mx.array, slots: int) -> mx.array:
    batch, heads, _, dim = like.shape
    room = mx.zeros((batch, heads, slots, dim), dtype=like.dtype)
    return room if buffer is None else mx.concatenate([buffer, room], axis=2)
