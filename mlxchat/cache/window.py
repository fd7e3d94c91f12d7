"""The key-value cache of one attention layer: a window of the latest tokens, plus the first few.

Prefill concatenates (temporal order, trimming the oldest first); decode writes in place into a
circular buffer. Positions are the cache's own: the kept tokens are right before the window, and the
offset stays bounded. `build` decides which layers get which window; tokens have no meaning here.
Everything counts in tokens; arrays are keys and values `(B, H_kv, T, D)`.
"""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any, ClassVar

import mlx.core as mx

from mlxchat.cache.mask import draft_mask, latest_mask, prefill_mask, ring_mask
from mlxchat.cache.originals import Originals
from mlxchat.cache.placement import Entries, Placement, length
from mlxchat.cache.positions import KeyShift
from mlxchat.cache.ring import grown, rolled, unrolled, without
from mlxchat.errors import CacheError

# Slots by which a filling buffer grows, so that most decoded tokens allocate nothing.
GROWTH = 256

# In decode, the kept tokens move up to the window after this many evictions. That is one small
# rotation of K keys per layer, and keeps the position gap between them and the window below this.
REANCHOR_EVERY = 64

# The most tokens that can be drafted at a time, and so the slots that a full buffer has for them.
DRAFT_SLOTS = 16

Mask = mx.array | str | None


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

    A model that relies on the order of the slots needs `in_order`, which copies the window for each
    decoded token.

    Implements the interface that mlx-lm's models and loops expect of a layer's cache. `offset` is
    the RoPE position of the next token, `total` the number of tokens added and not rewound.
    Invariants between calls:

    - the buffer's first `_size` slots are in use; the next `_drafted` hold drafted tokens until
      `settle`; the others are room to grow;
    - `_size <= _next <= capacity`, or the ring has wrapped and `_next` is the slot of the oldest
      entry that is not kept: `keep <= _next <= _size == max_size`;
    - in temporal order, the entries that are not kept have consecutive positions up to `offset`;
    - the kept entries are at positions `_anchor`, `_anchor + 1`, …;
    - entries that have been moved to the front, the kept ones first, have their `_originals` stored
      and are copies of those, rotated once: no key is ever rotated more than a few times;
    - `_moved` is how far the latest step has been moved back since it was fetched.

    Source: attention sinks and cache positions from StreamingLLM (Xiao et al., 2023); the storage
    bound of trim-and-concat prefill from mlx-lm's RotatingKVCache.
    """

    SETTINGS: ClassVar = ("max_size", "keep", "position_limit", "position_unit", "in_order")

    def __init__(
        self,
        max_size: int | None = None,
        keep: int = 0,
        *,
        shift: KeyShift | None = None,
        position_limit: int | None = None,
        position_unit: int = 1,
        in_order: bool = False,
    ) -> None:
        assert max_size is None or 0 <= keep < max_size
        self.max_size = max_size
        self.keep = keep
        self.shift = shift
        self.position_limit = position_limit
        self.position_unit = position_unit
        self.in_order = in_order
        self.offset = 0
        self.total = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._size = 0
        self._next = 0
        self._anchor = 0
        self._moved = 0
        self._originals = Originals()
        self._drafting = False
        self._drafted = 0

    # Called by the model

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add S tokens, `(B, H_kv, S, D)`, and return everything they may attend to, `(…, T, D)`.

        T has the order of the mask that `make_mask(S)` returned before the call.
        """
        added = keys.shape[2]
        self._moved = 0
        if self._drafting:
            fetched = self._draft(keys, values)
        elif added == 1 and not self.in_order:
            fetched = self._decode(keys, values)
        else:
            fetched = self._prefill(keys, values)
        self.offset += added
        self.total += added
        if not self._drafting:
            # Between two steps of this layer: what was fetched still matches the step's queries.
            self._rebase_at_limit()
        return fetched

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What `update_and_fetch` returned last, for layers that share this layer's cache."""
        assert self.keys is not None
        assert self.values is not None
        used = self._size + self._drafted
        keys, values = self.keys[..., :used, :], self.values[..., :used, :]
        if self._moved == 0 or self.shift is None:
            return keys, values
        return self.moved(keys, values, self._moved)

    def join(self, keys: mx.array, values: mx.array, position: int) -> None:
        """Append S tokens, `(B, H_kv, S, D)`, that were computed elsewhere from `position` on.

        They now follow the tokens held here, whatever they followed there. Needs a `shift`.
        """
        self.update_and_fetch(*self.moved(keys, values, self.offset - position))

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
            return self._draft_mask(N, window_size, return_array)
        if N == 1:
            return self._decode_mask(window_size)
        held = self._held_before_prefill()
        fits = self.max_size is None or held + N <= self.max_size
        if fits and (window_size is None or held + N <= window_size) and not return_array:
            return "causal"
        return prefill_mask(held, N, self.max_size, self.keep, window_size)

    # Prefill: temporal order

    def _held_before_prefill(self) -> int:
        """Number of entries that the first row of a prefill step may see, not counting itself."""
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
        return unrolled(x, self.keep, self._next, self._size)

    # Decode: a circular buffer

    def _decode(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self.keys is None or self._next in (self.keys.shape[2], self.max_size):
            self._make_room(keys, values)
        elif self._size == self.max_size:
            self._reanchor(REANCHOR_EVERY)
        assert self.keys is not None
        assert self.values is not None
        slot = self._next
        if slot < self._size and self._originals.tokens > self.keep:
            self._originals = self._originals.without(self.keep, self.keep + 1)
        self.keys[..., slot : slot + 1, :] = keys
        self.values[..., slot : slot + 1, :] = values
        self._next = slot + 1
        self._size = max(self._size, self._next)
        if self._size < self.keys.shape[2]:
            return self.keys[..., : self._size, :], self.values[..., : self._size, :]
        return self.keys, self.values

    def _make_room(self, keys: mx.array, values: mx.array) -> None:
        """Make `_next` a writable slot: a new one or, if full, the oldest that is not kept."""
        if self.max_size is not None and self._size >= self.max_size:
            self._evict_down_to(self.max_size)
            self._reanchor(REANCHOR_EVERY)
            self._next = self.keep
            return
        growth = GROWTH if self.max_size is None else min(GROWTH, self.max_size - self._size)
        self.keys = grown(self.keys, keys, growth)
        self.values = grown(self.values, values, growth)

    def _decode_mask(self, window_size: int | None) -> mx.array | None:
        size = self._size + 1 if self.max_size is None else min(self._size + 1, self.max_size)
        if window_size is None or window_size >= size:
            return None
        if self.in_order or self._size < size:
            return latest_mask(size, window_size)
        newest = self.keep if self._next >= size else self._next
        return ring_mask(size, window_size, self.keep, newest)

    # Drafted tokens: apart from the others until it is known how many stay

    @property
    def draft_room(self) -> int:
        """How many tokens can be drafted now such that each row of the step sees exactly what it
        would see if the tokens were decoded one by one."""
        full = self._size == self.max_size
        over_full = self.max_size is not None and self._size > self.max_size
        if over_full:
            return 0
        room = DRAFT_SLOTS
        if self.max_size is not None and not full:
            room = min(room, self.max_size - self._size)
        if self.position_limit is not None:
            room = min(room, self.position_limit - self.offset)
        if full and self.shift is not None and abs(self.gap) < REANCHOR_EVERY:
            room = min(room, REANCHOR_EVERY - self.gap)
        return room

    def begin_draft(self) -> None:
        """Let the next step's tokens, at most `draft_room`, be drafted ones."""
        self._drafting = True

    def settle(self, accepted: int) -> None:
        """Keep the first `accepted` tokens drafted and forget the others, as if they had never been
        added: they evict nothing."""
        rejected = self._drafted - accepted
        self._drafting = False
        if self._drafted == 0:
            return
        self._drafted = 0
        self.offset -= rejected
        self.total -= rejected
        if self._size == self.max_size:
            self._move_into_ring(accepted)
        else:
            self._size = self._next = self._size + accepted
        self._rebase_at_limit()

    def _draft(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self._size == self.max_size:
            self._reanchor(REANCHOR_EVERY)
        start, stop = self._size, self._size + keys.shape[2]
        capacity = 0 if self.keys is None else self.keys.shape[2]
        if capacity < stop:
            most = None if self.max_size is None else self.max_size + DRAFT_SLOTS - capacity
            growth = GROWTH if most is None else min(GROWTH, most)
            self.keys = grown(self.keys, keys, growth)
            self.values = grown(self.values, values, growth)
        assert self.keys is not None
        assert self.values is not None
        self.keys[..., start:stop, :] = keys
        self.values[..., start:stop, :] = values
        self._drafted = stop - start
        return self.keys[..., :stop, :], self.values[..., :stop, :]

    def _draft_mask(self, n: int, window_size: int | None, return_array: bool) -> Mask:
        stop = self._size + n
        fits = self.max_size is None or stop <= self.max_size
        if fits and (window_size is None or stop <= window_size) and not return_array:
            return None if n == 1 else "causal"
        oldest = self.keep if self._next >= self._size else self._next
        mask = draft_mask(
            self._size, n, self.max_size, self.keep, oldest=oldest, window_size=window_size
        )
        # deepseek_v32 takes the columns it attends to from the mask of a single row.
        return mask[None, None] if n == 1 else mask

    def _move_into_ring(self, tokens: int) -> None:
        """Write the first drafted tokens over the oldest entries of a full window."""
        assert self.keys is not None
        assert self.values is not None
        assert self.max_size is not None
        start, stop = self.max_size, self.max_size + tokens
        # Products, because with a slice the buffer would be copied to be written to.
        keys, values = self.keys[..., start:stop, :] * 1, self.values[..., start:stop, :] * 1
        first = 0
        while first < tokens:
            slot = self.keep if self._next == self.max_size else self._next
            last = min(tokens, first + self.max_size - slot)
            self._next = slot + last - first
            self.keys[..., slot : self._next, :] = keys[..., first:last, :]
            self.values[..., slot : self._next, :] = values[..., first:last, :]
            first = last
        evicted = min(tokens, self._originals.tokens - self.keep)
        if evicted > 0:
            self._originals = self._originals.without(self.keep, self.keep + evicted)

    # Evicting, rewinding

    def _evict_down_to(self, n: int) -> None:
        """Drop the oldest entries that are not kept, down to n. Needs temporal order."""
        if self._size > n:
            self._drop(self.keep, self.keep + self._size - n)

    def _drop(self, start: int, stop: int) -> None:
        assert self.keys is not None
        assert self.values is not None
        self.keys = without(self.keys, start, stop)
        self.values = without(self.values, start, stop)
        self._originals = self._originals.without(start, stop)
        self._size = self._next = self._size - (stop - start)
        if self._size == 0:
            self.keys = self.values = None

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
        self._put_in_temporal_order()
        self._drop(first, stop)
        self._anchor = self.offset - self._size
        if first and self._rotates:
            # Originals may extend beyond the span: those entries are rotated in place.
            rest = self._rotated[..., self._originals.tokens :, :]
            self._rotated = mx.concatenate([*self._moved_originals(), rest], axis=2)

    def check_evictable(self, start: int, stop: int) -> None:
        """Raise CacheError for kept entries, and if entries would have to move but cannot."""
        if not self._is_evictable(start, stop):
            raise CacheError(
                f"cannot evict tokens {start} to {stop}: of {self._size} held, "
                f"the first {self.keep} are kept"
            )
        if self.shift is None and start > 0:
            raise CacheError("this layer's keys cannot be shifted, so no span can be evicted")

    def _is_evictable(self, start: int, stop: int) -> bool:
        first = self.keep if self.keep else start
        return first <= start <= stop <= self._size

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        """Rewind: take back the latest n tokens and return how many were taken back.

        Works after the ring has wrapped; evicted tokens do not return. A layer whose window is
        narrower than n is left empty, at the same offset as all the other layers.
        """
        n = min(n, self.total)
        if n <= 0:
            return 0
        remaining = max(self._size - n, 0)
        self._put_in_temporal_order()
        if remaining < self._size:
            self._drop(remaining, self._size)
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
        in_values = self.shift is not None and self.shift.in_values
        rotated = self.values if in_values else self.keys
        assert rotated is not None
        return rotated

    @_rotated.setter
    def _rotated(self, rotated: mx.array) -> None:
        if self.shift is not None and self.shift.in_values:
            self.values = rotated
        else:
            self.keys = rotated

    @property
    def _rotates(self) -> bool:
        """Whether moving an entry changes its key."""
        return self.shift is not None and self.shift.dims > 0

    def _begin_kept(self) -> None:
        """Let the next tokens be kept ones, right after those that are held."""
        if self.shift is not None or self._size == 0:
            self._anchor = self.offset - self._size

    def _store_originals(self, tokens: int) -> None:
        """Store the current keys of the first `tokens` entries, unless already stored."""
        if not self._rotates or self._originals.tokens >= tokens:
            return
        # Up to the kept tokens, ring order and temporal order are the same.
        rotated = self._rotated if tokens <= self.keep else self._unrolled(self._rotated)
        kept = min(self.keep, tokens)
        for stop, position in ((kept, self._anchor), (tokens, self.offset - self._size)):
            start = self._originals.tokens
            if start < stop:
                # A product, because a slice would keep the whole buffer alive.
                keys = rotated[..., start:stop, :] * 1
                self._originals = self._originals.extended(keys, position + start)

    def _moved_originals(self) -> list[mx.array]:
        """Copies of all originals, rotated to the positions of their entries."""
        assert self.shift is not None
        stored = self._originals.tokens
        kept = min(self.keep, stored)
        window = self.offset - self._size
        return [
            *self._originals.moved(0, kept, self._anchor, self.shift),
            *self._originals.moved(kept, stored, window + kept, self.shift),
        ]

    def _reanchor(self, tolerance: int = 1) -> None:
        """Move the kept entries right before the window if they are `tolerance` or more away."""
        distance = self.offset - self._size
        if abs(distance - self._anchor) < tolerance or self.shift is None:
            return
        kept = min(self.keep, self._size)
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
        self._store_originals(min(self.keep, self._size))
        self.offset -= back
        self._anchor -= back
        self._moved = back
        if not self._rotates or self._size == 0:
            return
        assert self.keys is not None
        assert self.values is not None
        # Drop the room to grow, so that keys and values keep the same length.
        self.keys, self.values = self.keys[..., : self._size, :], self.values[..., : self._size, :]
        rest = self._unrolled(self._rotated)[..., self._originals.tokens :, :]
        moved = [*self._moved_originals(), self.shift(rest, -back)]
        # Not in place: the step in progress holds the keys where they were.
        self._rotated = self._rolled(mx.concatenate(moved, axis=2))

    # Reported by the cache

    def size(self) -> int:
        """Tokens held."""
        return self._size

    def empty(self) -> bool:
        return self._size == 0

    @property
    def evicted(self) -> int:
        """Tokens added and not rewound that are no longer held."""
        return self.total - self._size

    @property
    def gap(self) -> int:
        """Position gap between the last kept token and the window, ideally 0."""
        return self.offset - self._size - self._anchor

    @property
    def nbytes(self) -> int:
        """Bytes allocated, including room to grow."""
        stored = sum(array.nbytes for array in (self.keys, self.values) if array is not None)
        return stored + self._originals.nbytes

    # Copying, saving, restoring

    def copy(self) -> WindowCache:
        """An independent copy; arrays are copied only when either side writes."""
        other = copy.copy(self)
        other.keys = None if self.keys is None else self.keys[..., :, :]
        other.values = None if self.values is None else self.values[..., :, :]
        return other

    @property
    def state(self) -> dict[str, Any]:
        """The whole cache by name, arrays and numbers, for mlx-lm's loops to evaluate and its files
        to store."""
        return {
            "entries": self.entries._asdict(),
            "placement": asdict(self.placement),
            "settings": {name: getattr(self, name) for name in self.SETTINGS},
            "shift": None if self.shift is None else self.shift.as_dict(),
        }

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        for name in self.SETTINGS:
            setattr(self, name, state["settings"][name])
        self.shift = None if state["shift"] is None else KeyShift(**state["shift"])
        self.restore(Entries(**state["entries"]), Placement.of(state["placement"]))

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> WindowCache:
        cache = cls.__new__(cls)
        cache.state = state
        return cache

    def _rolled(self, x: mx.array) -> mx.array:
        return rolled(x, self.keep, self._next, self._size)

    @property
    def entries(self) -> Entries:
        """The entries held, in temporal order and without padding."""
        return Entries(
            None if self.keys is None else self._unrolled(self.keys),
            None if self.values is None else self._unrolled(self.values),
            self._originals.keys,
        )

    @property
    def placement(self) -> Placement:
        """The places of the entries."""
        return Placement(
            offset=self.offset,
            total=self.total,
            next=self._next,
            anchor=self._anchor,
            moved=self._moved,
            originals=self._originals.spans,
        )

    def restore(self, entries: Entries, placement: Placement) -> None:
        """Restore the entries of a cache with the same settings, and with them its exact state.

        Raises CacheError, changing nothing, if the numbers contradict the entries or settings.
        """
        if not placement.fits(entries, self.max_size, self.keep, self.position_limit):
            raise CacheError("a saved layer is inconsistent")
        self.offset, self.total = placement.offset, placement.total
        self._next, self._anchor, self._moved = placement.next, placement.anchor, placement.moved
        self._originals = Originals.placed(entries.originals, placement.originals)
        self._size = length(entries.keys)
        self._drafting, self._drafted = False, 0
        self.keys = None if entries.keys is None else self._rolled(entries.keys)
        self.values = None if entries.values is None else self._rolled(entries.values)
