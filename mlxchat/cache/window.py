"""The key-value cache of one attention layer: a window of the latest tokens, plus the first few.

Prefill concatenates (temporal order, trimming the oldest first); decode writes in place into a
circular buffer. Positions are the cache's own: the kept tokens are right before the window, and the
offset stays bounded. `build` decides which layers get which window; tokens have no meaning here.
Everything counts in tokens; arrays are keys and values `(B, H_kv, T, D)`.
"""

from __future__ import annotations

import copy

import mlx.core as mx

from mlxchat.cache.positions import KeyShift
from mlxchat.cache.ring import DRAFT_SLOTS, Entries, KeyRun, Mask, Originals, Placement, Ring
from mlxchat.errors import CacheError

# In decode, the kept tokens move up to the window after this many evictions. That is one small
# rotation of K keys per layer, and keeps the position gap between them and the window below this.
REANCHOR_EVERY = 64


class WindowCache:
    """Keys and values of at most `max_size` tokens (None: unbounded); the first `keep` are kept.

    Each new token attends to itself, to the kept tokens and to the latest others, `max_size` in
    all, in every row of a prefill step as in decode. Storage is at most `max_size + S - 1` entries
    after a prefill step of S tokens and at most `max_size` during decode, plus DRAFT_SLOTS once
    tokens have been drafted, plus the kept tokens' original keys.

    `shift` moves keys to other positions. If the layer's rope does not allow that, it is None and
    positions are the text's. When `offset` reaches `position_limit`, all keys move back by a
    multiple of `position_unit`. All layers of a model need the same limit and unit, since some
    models read one layer's offset for all.

    `in_order`, for models that rely on the order of slots, copies the window for each token.
    With `continues_step`, the next tokens see the kept ones where the previous ones saw them.

    Implements the interface that mlx-lm's models and loops expect of a layer's cache. `offset` is
    the RoPE position of the next token, `total` the number of tokens added and not rewound.
    Invariants between calls:

    - those of the `_ring`, which stores the entries;
    - in temporal order, the entries that are not kept have consecutive positions up to `offset`;
    - the kept entries are at positions `_anchor`, `_anchor + 1`, …;
    - entries that have been moved to the front, the kept ones first, have their `_originals` stored
      and are copies of those, rotated once: no key is ever rotated more than a few times;
    - `_moved` is how far the latest step has been moved back since it was fetched.

    Source: attention sinks and cache positions from StreamingLLM (Xiao et al., 2023); the storage
    bound of trim-and-concat prefill from mlx-lm's RotatingKVCache.
    """

    def __init__(self, max_size: int | None = None, keep: int = 0) -> None:
        assert max_size is None or 0 <= keep < max_size
        self.max_size = max_size
        self.keep = keep
        self.shift: KeyShift | None = None
        self.position_limit: int | None = None
        self.position_unit = 1
        self.in_order = False
        self.continues_step = False
        self.offset = 0
        self.total = 0
        self._ring = Ring(max_size, keep)
        self._anchor = 0
        self._moved = 0
        self._originals = Originals()
        self._drafting = False

    @property
    def keys(self) -> mx.array | None:
        """The buffer of keys, `(B, H_kv, capacity, D)`, including room to grow. Some models
        replace it by an equal array that depends on others."""
        return self._ring.held.keys

    @keys.setter
    def keys(self, keys: mx.array | None) -> None:
        self._ring.held = self._ring.held._replace(keys=keys)

    @property
    def values(self) -> mx.array | None:
        """As `keys`."""
        return self._ring.held.values

    @values.setter
    def values(self, values: mx.array | None) -> None:
        self._ring.held = self._ring.held._replace(values=values)

    # Called by the model

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add S tokens, `(B, H_kv, S, D)`, and return everything they may attend to, `(…, T, D)`.

        T has the order of the mask that `make_mask(S)` returned before the call.
        """
        new, added = Entries(keys, values), keys.shape[2]
        self._moved = 0
        if self._drafting:
            if self._ring.is_full:
                self._reanchor(REANCHOR_EVERY)
            self._ring.draft(new)
        elif added == 1 and not self.in_order:
            self._decode(new)
        else:
            self._prefill(new)
        fetched = self._ring.used().pair
        self.continues_step = False
        self.offset += added
        self.total += added
        if not self._drafting:
            # Between two steps of this layer: what was fetched still matches the step's queries.
            self._rebase_at_limit()
        return fetched

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What `update_and_fetch` returned last, for layers that share this layer's cache."""
        keys, values = self._ring.used().pair
        if self._moved == 0 or self.shift is None:
            return keys, values
        return self.moved(keys, values, self._moved)

    def moved(self, keys: mx.array, values: mx.array, distance: int) -> tuple[mx.array, mx.array]:
        """Shift this layer's keys and values, `(…, T, D)`, by `distance` positions."""
        assert self.shift is not None
        if self.shift.in_values:
            return keys, self.shift(values, distance)
        return self.shift(keys, distance), values

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Mask:
        """The mask for the next N tokens, before they are added.

        Returns None (all visible), "causal", or a boolean array `(N, T)`, true for the visible
        entries. A `window_size` smaller than ours narrows the view to that many latest tokens, kept
        ones included: for a layer with a sliding window that shares this cache.
        """
        if window_size is not None and self.max_size is not None and window_size >= self.max_size:
            window_size = None
        if self._drafting:
            return self._ring.draft_mask(N, window_size, return_array=return_array)
        if N == 1:
            return self._ring.decode_mask(window_size, in_order=self.in_order)
        return self._ring.prefill_mask(N, window_size, return_array=return_array)

    # Prefill: temporal order

    def _prefill(self, new: Entries) -> None:
        self._ring.unroll()
        if self._ring.size:
            self._evict_down_to(self._ring.seen_by_next)
            self._move_up()
        self._ring.append(new)

    # Decode: a circular buffer

    def _decode(self, new: Entries) -> None:
        if self.max_size is not None and self._ring.size >= self.max_size:
            self._evict_down_to(self.max_size)
            self._move_up(REANCHOR_EVERY)
            self._forget_originals(1)
        self._ring.write(new)

    def _move_up(self, tolerance: int = 1) -> None:
        if not self.continues_step:
            self._reanchor(tolerance)

    def _forget_originals(self, overwritten: int) -> None:
        """Forget the stored keys of the oldest entries that are not kept."""
        stop = min(self.keep + overwritten, self._originals.tokens)
        if stop > self.keep:
            self._originals = self._originals.without(self.keep, stop)

    # Drafted tokens: apart from the others until it is known how many stay

    @property
    def draft_room(self) -> int:
        """How many tokens can be drafted now such that each row of the step sees exactly what it
        would see if the tokens were decoded one by one."""
        room = DRAFT_SLOTS
        if self.max_size is not None and not self._ring.is_full:
            room = min(room, self.max_size - self._ring.size)
        if self.position_limit is not None:
            room = min(room, self.position_limit - self.offset)
        if self._ring.is_full and self.shift is not None and abs(self.gap) < REANCHOR_EVERY:
            room = min(room, REANCHOR_EVERY - self.gap)
        return max(room, 0)

    def begin_draft(self) -> None:
        """Let the next step's tokens, at most `draft_room`, be drafted ones."""
        self._drafting = True

    def settle(self, accepted: int) -> None:
        """Keep the first `accepted` tokens drafted and forget the others, which evict nothing."""
        rejected = self._ring.drafted - accepted
        self._drafting = False
        if self._ring.drafted == 0:
            return
        self.offset -= rejected
        self.total -= rejected
        if self._ring.is_full:
            self._forget_originals(accepted)
        self._ring.settle(accepted)
        self._rebase_at_limit()

    # Evicting, rewinding

    def _evict_down_to(self, n: int) -> None:
        """Drop the oldest entries that are not kept, down to n. Needs temporal order."""
        if self._ring.size > n:
            self._drop(self.keep, self.keep + self._ring.size - n)

    def _drop(self, start: int, stop: int) -> None:
        self._ring.drop(start, stop)
        self._originals = self._originals.without(start, stop)

    def evict(self, start: int, stop: int) -> None:
        """Drop entries `start` to `stop` in temporal order. Those before them move up to those
        after them, which stay in place.

        If nothing is kept, `start` may be negative: the span then began with tokens that this layer
        no longer holds. Raises what `check_evictable` raises.
        """
        self.check_evictable(start, stop)
        first = max(start, 0)
        if stop <= first:
            return
        self._reanchor()
        self._store_originals(first)
        self._ring.unroll()
        self._drop(first, stop)
        self._anchor = self.offset - self._ring.size
        if first and self._rotates:
            # Originals may extend beyond the span: those entries are rotated in place.
            rest = self._rotated[..., self._originals.tokens :, :]
            self._rotated = mx.concatenate([*self._moved_originals(), rest], axis=2)

    def check_evictable(self, start: int, stop: int) -> None:
        """Raise CacheError for kept entries, and if entries would have to move but cannot."""
        if not self._is_evictable(start, stop):
            raise CacheError(
                f"cannot evict tokens {start} to {stop}: of {self._ring.size} held, "
                f"the first {self.keep} are kept"
            )
        if self.shift is None and start > 0:
            raise CacheError("this layer's keys cannot be shifted, so no span can be evicted")

    def _is_evictable(self, start: int, stop: int) -> bool:
        first = self.keep if self.keep else start
        return first <= start <= stop <= self._ring.size

    def trim(self, n: int) -> int:
        """Rewind: take back the latest n tokens and return how many were taken back.

        Works after the ring has wrapped; evicted tokens do not return. A layer whose window is
        narrower than n is left empty, at the same offset as all the other layers.
        """
        n = min(n, self.total)
        if n <= 0:
            return 0
        remaining = max(self._ring.size - n, 0)
        self._ring.unroll()
        if remaining < self._ring.size:
            self._drop(remaining, self._ring.size)
        self.total -= n
        self.offset -= n
        if remaining <= self.keep:
            self._reanchor()
            self._begin_kept()
        return n

    # Positions

    @property
    def _rotated(self) -> mx.array:
        """The buffer whose entries carry positions: the keys, or the values in their place."""
        return self._ring.held.pair[self.shift is not None and self.shift.in_values]

    @_rotated.setter
    def _rotated(self, rotated: mx.array) -> None:
        in_values = self.shift is not None and self.shift.in_values
        self._ring.held = self._ring.held._replace(**{"values" if in_values else "keys": rotated})

    @property
    def _rotates(self) -> bool:
        """Whether moving an entry changes its key."""
        return self.shift is not None and self.shift.dims > 0

    def _begin_kept(self) -> None:
        """Let the next tokens be kept ones, right after those that are held."""
        if self.shift is not None or self._ring.size == 0:
            self._anchor = self.offset - self._ring.size

    def _store_originals(self, tokens: int) -> None:
        """Store the current keys of the first `tokens` entries, unless already stored."""
        if not self._rotates or self._originals.tokens >= tokens:
            return
        # Up to the kept tokens, ring order and temporal order are the same.
        rotated = self._rotated if tokens <= self.keep else self._ring.unrolled(self._rotated)
        kept = min(self.keep, tokens)
        for stop, position in ((kept, self._anchor), (tokens, self.offset - self._ring.size)):
            start = self._originals.tokens
            if start < stop:
                # A product, because a slice would keep the whole buffer alive.
                run = KeyRun(rotated[..., start:stop, :] * 1, position + start)
                self._originals = Originals((*self._originals.runs, run))

    def _moved_originals(self) -> list[mx.array]:
        """Copies of all originals, rotated to the positions of their entries."""
        assert self.shift is not None
        stored = self._originals.tokens
        kept = min(self.keep, stored)
        window = self.offset - self._ring.size
        return [
            *self._originals.moved(0, kept, self._anchor, self.shift),
            *self._originals.moved(kept, stored, window + kept, self.shift),
        ]

    def _reanchor(self, tolerance: int = 1) -> None:
        """Move the kept entries right before the window if they are `tolerance` or more away."""
        distance = self.offset - self._ring.size
        if abs(distance - self._anchor) < tolerance or self.shift is None:
            return
        kept = min(self.keep, self._ring.size)
        self._store_originals(kept)
        self._anchor = distance
        if kept and self._rotates:
            moved = self._originals.moved(0, kept, self._anchor, self.shift)
            self._rotated[..., :kept, :] = mx.concatenate(moved, axis=2)

    def _rebase_at_limit(self) -> None:
        if self.position_limit is not None and self.offset >= self.position_limit:
            self._rebase(self.position_limit // 2)

    def _rebase(self, offset: int) -> None:
        """Move all keys back, so that the next token is at `offset` or slightly after."""
        assert self.shift is not None
        back = (self.offset - offset) // self.position_unit * self.position_unit
        self._store_originals(min(self.keep, self._ring.size))
        self.offset -= back
        self._anchor -= back
        self._moved = back
        if not self._rotates or self._ring.size == 0:
            return
        # So that keys and values keep the same length.
        self._ring.held = self._ring.held.between(0, self._ring.size)
        rest = self._ring.unrolled(self._rotated)[..., self._originals.tokens :, :]
        moved = [*self._moved_originals(), self.shift(rest, -back)]
        # Not in place: the step in progress holds the keys where they were.
        self._rotated = self._ring.rolled(mx.concatenate(moved, axis=2))

    # Reported by the cache

    def size(self) -> int:
        """Tokens held."""
        return self._ring.size

    def empty(self) -> bool:
        return self._ring.size == 0

    @property
    def evicted(self) -> int:
        """Tokens added and not rewound that are no longer held."""
        return self.total - self._ring.size

    @property
    def gap(self) -> int:
        """Position gap between the last kept token and the window, ideally 0."""
        return self.offset - self._ring.size - self._anchor

    @property
    def nbytes(self) -> int:
        """Bytes allocated, including room to grow."""
        return sum(array.nbytes for array in self._ring.held.arrays) + self._originals.nbytes

    # Copying, saving, restoring

    def copy(self) -> WindowCache:
        """An independent copy; arrays are copied only when either side writes."""
        other = copy.copy(self)
        other._ring = self._ring.copy()
        return other

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return self.entries.arrays

    @property
    def entries(self) -> Entries:
        """The entries held, in temporal order and without padding."""
        held = self._ring.held.each(self._ring.unrolled)
        return held._replace(originals=self._originals.keys)

    @property
    def placement(self) -> Placement:
        """The places of the entries."""
        return Placement(
            offset=self.offset,
            total=self.total,
            next=self._ring.next,
            anchor=self._anchor,
            moved=self._moved,
            originals=self._originals.spans,
        )

    def fill(self, entries: Entries, total: int) -> None:
        """Hold these entries, the latest of `total` tokens, in an empty window that has evicted
        nothing, or that keeps nothing."""
        size = entries.tokens
        self.restore(entries, Placement(total, total, size, total - size))

    def restore(self, entries: Entries, placement: Placement) -> None:
        """Restore the entries of a cache with the same settings, and with them its exact state."""
        self.offset, self.total = placement.offset, placement.total
        self._anchor, self._moved = placement.anchor, placement.moved
        self._originals = Originals.placed(entries.originals, placement.originals)
        self._drafting = False
        self._ring = Ring(self.max_size, self.keep)
        self._ring.restore(entries._replace(originals=None), placement.next)
