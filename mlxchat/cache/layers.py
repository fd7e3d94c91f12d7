"""A whole model's cache: all layers, and totals over them.

A list with one object per layer: our windows, mlx-lm's recurrent states, or its lists of both.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList

from mlxchat.cache.ring import DRAFT_SLOTS, Entries, Mask
from mlxchat.cache.window import WindowCache
from mlxchat.errors import CacheError

LayerCache = Any


class ChunkCache(WindowCache):
    """A window of at most `max_size` tokens within the current chunk of `chunk_size` positions, as
    in Llama 4's local layers. Everything is evicted at the end of a chunk, and the first tokens of
    the next one are the kept ones.

    Replaces mlx-lm's ChunkedKVCache, whose model computes the mask from `offset` and
    `start_position`: there, a row of a prefill step sees everything held of its chunk, up to S - 1
    tokens more than `max_size`. Positions move back by whole chunks.
    """

    def __init__(self, chunk_size: int, max_size: int, keep: int = 0) -> None:
        super().__init__(max_size, keep)
        self.chunk_size = chunk_size

    @property
    def start_position(self) -> int:
        """The position of the first entry that the model sees in the next step."""
        return self.offset - self._ring.seen_by_next

    def maybe_trim_front(self) -> None:
        """Evict everything before the next token's chunk. The model calls this before each step."""
        in_chunk = min(self._ring.size, self.offset % self.chunk_size)
        if in_chunk == self._ring.size:
            return
        self._ring.unroll()
        self._drop(0, self._ring.size - in_chunk)
        self._begin_kept()

    def _is_evictable(self, start: int, stop: int) -> bool:
        # Kept tokens belong to the chunk, and go with it.
        return start <= stop <= self._ring.size


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
        check_not_narrower(window_size, self.max_size)
        return super().make_mask(N, None, return_array)


def check_not_narrower(window_size: int | None, max_size: int | None) -> None:
    """Raise ValueError for a view narrower than the window: all see the shared tokens."""
    if window_size is not None and (max_size is None or window_size < max_size):
        raise ValueError("a view narrower than the window")


class Cache(list[LayerCache]):
    """One object per layer, for `model(tokens, cache=…)`.

    A subclass may hold one shard of a cache whose other shards are on other machines.

    The tokens of the step after `begin_draft` are drafts: they count only once accepted.
    """

    is_drafting = False
    accepted = 0
    _states_before: Sequence[list[Any]] = ()

    def fork(self) -> "Cache":
        """An independent copy; a window's arrays are copied only when either side writes."""
        self.settle()
        return Cache(replaced(layer, _forked) for layer in self)

    @property
    def draft_room(self) -> int:
        """How many tokens can be drafted now; 0 if a layer cannot take them back."""
        if draft_refusal(self) is not None:
            return 0
        rooms = (window.draft_room for window in windows(self) if window.total)
        return min(rooms, default=DRAFT_SLOTS)

    def begin_draft(self) -> None:
        """Let the next step's tokens, at most `draft_room`, be drafted ones."""
        self.is_drafting, self.accepted = True, 0
        self._states_before = [list(state.cache) for state in recurrent_states(self)]
        for window in windows(self):
            window.begin_draft()

    def accept(self, tokens: int = 1) -> None:
        """The next drafted tokens stay."""
        self.accepted += tokens

    def settle(self) -> None:
        """Forget the drafted tokens that were not accepted, as if they had never been added.
        Recurrent layers keep them: they need `drop_draft`."""
        if not self.is_drafting:
            return
        for window in windows(self):
            window.settle(self.accepted)
        self.is_drafting = False

    def drop_draft(self) -> None:
        """Forget all drafted tokens, in recurrent layers too."""
        self.accepted = 0
        self.settle()
        for state, before in zip(recurrent_states(self), self._states_before, strict=True):
            state.cache = before

    def rewind(self, n: int) -> None:
        """Take back the latest n tokens in all layers.

        Raises CacheError, changing nothing, if a recurrent layer has seen any tokens, since it
        cannot take back single ones: such a model continues from an earlier fork instead.
        """
        self.settle()
        if any(not state.empty() for state in recurrent_states(self)):
            raise CacheError("this model has recurrent layers, which cannot be rewound")
        for window in windows(self):
            window.trim(n)

    def evict(self, start: int, stop: int) -> None:
        """Drop entries `start` to `stop` of the widest window, and the same tokens from the others.

        Later tokens move up. Recurrent layers keep what they remember. Raises CacheError, changing
        nothing, for kept entries and if keys cannot be shifted.
        """
        self.settle()
        held = tokens_held(self)
        # Each with the span in its own entries.
        spans = [
            (window, start - held + window.size(), stop - held + window.size())
            for window in windows(self)
            if window.total
        ]
        for window, first, last in spans:
            window.check_evictable(first, last)
        for window, first, last in spans:
            window.evict(first, last)


def draft_refusal(cache: Sequence[LayerCache]) -> str | None:
    """Why no tokens can be drafted; None if they can."""
    return plain_refusal(cache, "this model copies its window for every token")


def plain_refusal(cache: Sequence[LayerCache], in_order: str | None = None) -> str | None:
    """Why a cache has more than plain windows and recurrent states; None if it has not. `in_order`
    is what speaks against windows that stay in order, if anything does."""
    for leaf in leaves(cache):
        if in_order and isinstance(leaf, WindowCache) and leaf.in_order:
            return in_order
        if isinstance(leaf, WindowCache) and type(leaf) is not WindowCache:
            return "this model attends within chunks"
        if not isinstance(leaf, WindowCache | ArraysCache):
            return f"this model uses a {type(leaf).__name__}"
    return None


def _forked(leaf: LayerCache) -> LayerCache:
    if isinstance(leaf, WindowCache):
        return leaf.copy()
    other = copy.copy(leaf)
    if isinstance(leaf, ArraysCache):
        # Its arrays are replaced, never modified, so copying the list is enough.
        other.cache = list(leaf.cache)
    return other


def replaced(layer: LayerCache, replace: Callable[[LayerCache], LayerCache]) -> LayerCache:
    """The layer with its windows and recurrent states replaced, including those in lists."""
    if isinstance(layer, CacheList):
        return CacheList(*(replaced(each, replace) for each in layer.caches))
    return replace(layer)


def leaves(cache: Sequence[LayerCache]) -> Iterator[LayerCache]:
    """Yield every window and recurrent state, including those in lists."""
    for layer in cache:
        if isinstance(layer, CacheList):
            yield from leaves(layer.caches)
        else:
            yield layer


def windows(cache: Sequence[LayerCache]) -> list[WindowCache]:
    """Every window, in layer order."""
    return [leaf for leaf in leaves(cache) if isinstance(leaf, WindowCache)]


def recurrent_states(cache: Sequence[LayerCache]) -> list[ArraysCache]:
    """Every recurrent state, in layer order, and any other that cannot be rewound."""
    return [leaf for leaf in leaves(cache) if not isinstance(leaf, WindowCache)]


def positions_bounded(cache: Sequence[LayerCache]) -> bool:
    """Whether positions stay bounded. Otherwise they grow with the text, and quality falls."""
    return all(window.position_limit for window in windows(cache))


def tokens_held(cache: Sequence[LayerCache]) -> int:
    """Tokens in the fullest window."""
    return max((window.size() for window in windows(cache)), default=0)


def tokens_evicted(cache: Sequence[LayerCache]) -> int:
    """Tokens that even the widest window has evicted."""
    # A model may have layers that it never uses.
    return min((window.evicted for window in windows(cache) if window.total), default=0)


# Several rows, prefilled together


def most_together(cache: Sequence[LayerCache]) -> int | None:
    """Up to how many tokens several rows may be prefilled in one cache, shorter ones padded at
    their ends; None for any number. A recurrent state would include the padding, and it would evict
    tokens from a full window."""
    if recurrent_states(cache):
        return 0
    return min((w.max_size for w in windows(cache) if w.max_size is not None), default=None)


def repeated(cache: Cache, rows: int) -> Cache:
    """A cache with several rows, all like the one in `cache`, which does not change."""
    copies = cache.fork()
    for window in windows(copies):
        several = window.entries.each(lambda x: mx.repeat(x, rows, axis=0))
        window.restore(several, window.placement)
    return copies


def after(start: Cache) -> Cache:
    """An empty cache for several texts that begin with the one in `start`, to be read in one step
    by a model whose rows share it. Up to `most_together` tokens each."""
    return Cache(replaced(layer, EndingsWindow) for layer in start)
