"""The stored entries of a window: keys and values `(B, H, T, D)` of its tokens, without positions.

Prefill appends in temporal order. Decode writes in place: into room to grow, then, once the window
is full, over the oldest entries that are not kept, as in a circular buffer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx

from mlxchat.cache.positions import KeyShift

# Slots by which a filling buffer grows, so that most decoded tokens allocate nothing.
GROWTH = 256

# The most tokens that can be drafted at a time, and so the slots that a full buffer has for them.
DRAFT_SLOTS = 16


class Entries(NamedTuple):
    """A window's keys and values `(B, H, T, D)`, and the original keys of the first, or None."""

    keys: mx.array | None = None
    values: mx.array | None = None
    originals: mx.array | None = None

    @property
    def tokens(self) -> int:
        """T."""
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def pair(self) -> tuple[mx.array, mx.array]:
        """Keys and values, if there are any."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    @property
    def arrays(self) -> list[mx.array]:
        return [array for array in self if array is not None]

    def each(self, change: Callable[[mx.array], mx.array]) -> Entries:
        """With every array changed."""
        return Entries(*(None if array is None else change(array) for array in self))

    def between(self, start: int, stop: int | None) -> Entries:
        """Tokens `start` to `stop`, in new objects: decode writes into the object itself."""
        return Entries(*[None if x is None else x[..., start:stop, :] for x in self])

    def followed_by(self, other: Entries) -> Entries:
        """These keys and values and then the other ones."""
        if not self.tokens or not other.tokens:
            return self if self.tokens else other
        pairs = zip(self.pair, other.pair, strict=True)
        return Entries(*(mx.concatenate([*both], axis=2) for both in pairs))

    def put(self, slot: int, new: Entries) -> None:
        """Overwrite the tokens from this slot on, in place."""
        for own, written in zip(self.pair, new.pair, strict=True):
            own[..., slot : slot + written.shape[2], :] = written


@dataclass(frozen=True, slots=True)
class KeyRun:
    """Keys `(B, H_kv, T, D)` of T tokens at consecutive positions from `position`."""

    keys: mx.array
    position: int

    @property
    def tokens(self) -> int:
        """T."""
        return self.keys.shape[2]


@dataclass(frozen=True, slots=True)
class Originals:
    """The original keys of a window's first tokens, in temporal order. Immutable.

    A key rotated repeatedly in half precision drifts. Tokens at the front of a window move often,
    so their original keys are stored once, and each copy in the window is rotated from those.
    """

    runs: tuple[KeyRun, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(run.tokens for run in self.runs)

    @property
    def nbytes(self) -> int:
        return sum(run.keys.nbytes for run in self.runs)

    def without(self, start: int, stop: int) -> Originals:
        """With tokens `start` to `stop` removed."""
        return Originals((*self._between(0, start), *self._between(stop, self.tokens)))

    def moved(self, start: int, stop: int, position: int, shift: KeyShift) -> list[mx.array]:
        """The keys of tokens `start` to `stop`, rotated to the positions from `position`."""
        moved: list[mx.array] = []
        for run in self._between(start, stop):
            moved.append(shift(run.keys, position - run.position))
            position += run.tokens
        return moved

    def _between(self, start: int, stop: int) -> Iterator[KeyRun]:
        begin = 0
        for run in self.runs:
            first, last = max(start - begin, 0), min(stop - begin, run.tokens)
            if first < last:
                yield KeyRun(run.keys[..., first:last, :], run.position + first)
            begin += run.tokens

    @property
    def keys(self) -> mx.array | None:
        """All keys, `(B, H_kv, T, D)`, in one array."""
        if len(self.runs) < 2:
            return self.runs[0].keys if self.runs else None
        return mx.concatenate([run.keys for run in self.runs], axis=2)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Token count and position of each run, which turn `keys` back into runs."""
        return tuple((run.tokens, run.position) for run in self.runs)

    @classmethod
    def placed(cls, keys: mx.array | None, spans: Iterable[tuple[int, int]]) -> Originals:
        """The inverse of `keys` and `spans`."""
        runs: list[KeyRun] = []
        start = 0
        for tokens, position in spans:
            assert keys is not None
            runs.append(KeyRun(keys[..., start : start + tokens, :], position))
            start += tokens
        return cls(tuple(runs))


@dataclass(frozen=True, slots=True)
class Placement:
    """The slots of a window's entries, and the slot of the next one.

    Each entry returns to its own slot of the ring, so that sums run in the same order and logits
    agree to the bit. `originals` has the token count and position of each run.
    """

    offset: int
    total: int
    next: int
    anchor: int
    moved: int = 0
    originals: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Placement:
        """Build from the fields in a file: lists instead of tuples."""
        runs = tuple((tokens, position) for tokens, position in saved["originals"])
        return cls(**{**saved, "originals": runs})


# What next tokens see: None (all entries), "causal", or a boolean array `(N, T)`, true if seen.
Mask = mx.array | str | None


class Ring:
    """Entries of at most `max_size` tokens (None: unbounded), or more right after a prefill step.
    The first `keep` stay in place.

    Invariants between calls:

    - the first `size` slots of the buffer are in use; the next `drafted` hold drafted tokens; the
      others are room to grow;
    - `size <= next <= capacity`, so the entries are in temporal order, or the buffer has wrapped,
      and `next` is the slot of the oldest entry that is not kept:
      `keep <= next <= size == max_size`.
    """

    def __init__(self, max_size: int | None, keep: int) -> None:
        self.max_size = max_size
        self.keep = keep
        # With room to grow.
        self.held = Entries()
        self.size = 0
        self.next = 0
        self.drafted = 0

    @property
    def is_full(self) -> bool:
        return self.size == self.max_size

    @property
    def seen_by_next(self) -> int:
        """The number of entries that the next token sees, not counting itself."""
        return self.size if self.max_size is None else min(self.size, self.max_size - 1)

    def used(self) -> Entries:
        """Keys and values of all entries and drafted tokens, in the order of the slots."""
        used = self.size + self.drafted
        return self.held if used == self.held.tokens else self.held.between(0, used)

    def copy(self) -> Ring:
        """An independent copy; arrays are copied only when either side writes."""
        other = copy.copy(self)
        other.held = self.held.between(0, None)
        return other

    # Adding tokens

    def append(self, new: Entries) -> None:
        """Add tokens in temporal order."""
        self.held = self.held.followed_by(new)
        self.size = self.next = self.held.tokens

    def write(self, new: Entries) -> None:
        """Add one token, in place of the oldest that is not kept if the ring is full."""
        if self.is_full and self.next == self.max_size:
            self.next = self.keep
        elif self.next == self.held.tokens:
            self._grow(new, self.next + GROWTH if self.max_size is None else self.max_size)
        self.held.put(self.next, new)
        self.next += 1
        self.size = max(self.size, self.next)

    def draft(self, new: Entries) -> None:
        """Write tokens, at most DRAFT_SLOTS, after the others until `settle`."""
        stop = self.size + new.tokens
        if self.held.tokens < stop:
            limit = stop + GROWTH if self.max_size is None else self.max_size + DRAFT_SLOTS
            self._grow(new, limit)
        self.held.put(self.size, new)
        self.drafted = new.tokens

    def settle(self, accepted: int) -> None:
        """Keep the first `accepted` drafted tokens, and forget the others."""
        self.drafted = 0
        if not self.is_full:
            self.size = self.next = self.size + accepted
            return
        # Products, because with a slice the buffer would be copied to be written to.
        new = self.held.each(lambda x: x[..., self.size : self.size + accepted, :] * 1)
        first = 0
        while first < accepted:
            slot = self.keep if self.next == self.size else self.next
            last = min(accepted, first + self.size - slot)
            self.held.put(slot, new.between(first, last))
            self.next = slot + last - first
            first = last

    def _grow(self, like: Entries, limit: int) -> None:
        """Add slots for tokens like these: GROWTH, or fewer up to a capacity of `limit`."""
        slots = min(GROWTH, limit - self.held.tokens)
        self.held = self.held.followed_by(
            like.each(lambda x: mx.zeros((*x.shape[:2], slots, x.shape[3]), x.dtype))
        )

    # What the next tokens see. A `window_size` narrows that to as many, the kept and the latest.

    def prefill_mask(self, n: int, window_size: int | None, *, return_array: bool) -> Mask:
        """The mask for `n` tokens that will be appended.

        Each row sees itself, the kept tokens and the latest others, `max_size` in all.
        """
        held = self.seen_by_next
        if self._fits(held + n, window_size) and not return_array:
            return "causal"
        rows = mx.arange(held, held + n)[:, None]
        return self._visible(rows, mx.arange(held + n)[None], window_size)

    def decode_mask(self, window_size: int | None, *, in_order: bool) -> Mask:
        """The mask for one token, written in place unless the window stays `in_order`."""
        size = self.size + 1 if self.max_size is None else min(self.size + 1, self.max_size)
        if window_size is None or window_size >= size:
            return None
        visible = mx.arange(size) >= size - window_size
        if in_order or self.size < size:
            return visible[None]
        newest = self.keep if self.next >= size else self.next
        # From `newest` on, slots hold ever later entries, wrapping around: the mask must match.
        rotated = mx.roll(visible[self.keep :], newest - self.keep + 1)
        return mx.concatenate([visible[: self.keep], rotated])[None]

    def draft_mask(self, n: int, window_size: int | None, *, return_array: bool) -> Mask:
        """The mask for `n` drafted tokens, which will be written after the others.

        Each row sees what it would see if the rows before it had been added one by one, each
        evicting the oldest entry of a full window.
        """
        size, keep = self.size, self.keep
        if self._fits(size + n, window_size) and not return_array:
            return None if n == 1 else "causal"
        slots = mx.arange(size + n)[None]
        in_ring = (slots >= keep) & (slots < size)
        oldest = keep if self.next >= size else self.next
        order = mx.where(in_ring, keep + (slots - oldest) % max(size - keep, 1), slots)
        mask = self._visible(mx.arange(size, size + n)[:, None], order, window_size)
        # deepseek_v32 takes the columns it attends to from the mask of a single row.
        return mask[None, None] if n == 1 else mask

    def _fits(self, tokens: int, window_size: int | None) -> bool:
        return all(limit is None or tokens <= limit for limit in (self.max_size, window_size))

    def _visible(self, rows: mx.array, columns: mx.array, window_size: int | None) -> mx.array:
        """Whether the rows `(N, 1)` see the columns `(1, T)`, both in temporal order."""
        visible = rows >= columns
        if self.max_size is not None:
            latest = rows - columns < self.max_size - self.keep
            visible = visible & (latest | (columns < self.keep))
        if window_size is not None:
            visible = visible & (rows - columns < window_size)
        return visible

    # Temporal order, and removing tokens

    def unroll(self) -> None:
        """Put the entries in temporal order, and drop the room to grow."""
        self.held = self.held.each(self.unrolled)
        self.next = self.size

    def drop(self, start: int, stop: int) -> None:
        """Remove tokens `start` to `stop`. Needs temporal order."""
        self.size = self.next = self.size - (stop - start)
        rest = self.held.each(
            lambda x: mx.concatenate([x[..., :start, :], x[..., stop:, :]], axis=2)
        )
        self.held = rest if self.size else Entries()

    def restore(self, entries: Entries, next: int) -> None:
        """Hold these entries, which are in temporal order, with `next` as it was."""
        self.size, self.next, self.drafted = entries.tokens, next, 0
        self.held = entries.each(self.rolled)

    def unrolled(self, x: mx.array) -> mx.array:
        """The entries of a buffer in temporal order."""
        keep, next, size = self.keep, self.next, self.size
        if next == size:
            # A slice even of the whole: decode writes into the buffer object itself.
            return x[..., :size, :]
        return mx.concatenate(
            [x[..., :keep, :], x[..., next:size, :], x[..., keep:next, :]], axis=2
        )

    def rolled(self, x: mx.array) -> mx.array:
        """The inverse of `unrolled`; always a new object."""
        keep, next, size = self.keep, self.next, self.size
        if next == size:
            return x[..., :, :]
        older = size - next + keep
        return mx.concatenate([x[..., :keep, :], x[..., older:, :], x[..., keep:older, :]], axis=2)
