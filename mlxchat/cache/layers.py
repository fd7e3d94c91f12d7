"""All layers together: what is done to a model's whole cache, and what is counted over it.

A model's cache is a list with an object a layer: our windows, mlx-lm's recurrent states, and
mlx-lm's lists of both, for layers that keep two things.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from mlx_lm.models.cache import ArraysCache, CacheList

from mlxchat.cache.window import WindowCache
from mlxchat.distributed.leader import SharedCache
from mlxchat.errors import CacheError

LayerCache = Any


def parts(cache: Sequence[LayerCache]) -> Iterator[LayerCache]:
    """Every window and every recurrent state, those in lists too."""
    for layer in cache:
        if isinstance(layer, CacheList):
            yield from parts(layer.caches)
        else:
            yield layer


def windows(cache: Sequence[LayerCache]) -> list[WindowCache]:
    """Every window, in the order of the layers."""
    return [part for part in parts(cache) if isinstance(part, WindowCache)]


def recurrent_states(cache: Sequence[LayerCache]) -> list[ArraysCache]:
    """Every recurrent state, in the order of the layers."""
    return [part for part in parts(cache) if isinstance(part, ArraysCache)]


def fork(cache: Sequence[LayerCache]) -> list[LayerCache]:
    """A cache that goes its own way from here; a window is copied only when one side writes."""
    layers = [_fork_layer(layer) for layer in cache]
    return cache.forked(layers) if isinstance(cache, SharedCache) else layers


def _fork_layer(layer: LayerCache) -> LayerCache:
    if isinstance(layer, WindowCache):
        return layer.copy()
    other = copy.copy(layer)
    if isinstance(layer, CacheList):
        other.caches = tuple(fork(layer.caches))
    elif isinstance(layer, ArraysCache):
        # Its arrays are replaced, never written into: a list of its own is enough.
        other.cache = list(layer.cache)
    return other


def rewind(cache: Sequence[LayerCache], n: int) -> None:
    """Take back the latest n tokens in all layers.

    Raises CacheError where a recurrent layer, which remembers no single tokens, has seen any: such
    a model goes back by going on from an earlier fork.
    """
    if any(not state.empty() for state in recurrent_states(cache)):
        raise CacheError("this model has recurrent layers, which cannot be rewound")
    if isinstance(cache, SharedCache):
        cache.rewinding(n)
    for window in windows(cache):
        window.trim(n)


def evict(cache: Sequence[LayerCache], start: int, stop: int) -> None:
    """Drop the entries `start` to `stop` of the widest window, and from the others what they hold
    of the same tokens; later tokens move up. What recurrent layers remember of them stays.

    Raises CacheError, with nothing done, for kept entries and where keys cannot be shifted.
    """
    held = tokens_held(cache)
    spans = [(window, held - window.size()) for window in windows(cache) if window.total]
    for window, missing in spans:
        window.check_evictable(start - missing, stop - missing)
    if isinstance(cache, SharedCache):
        cache.evicting(start, stop)
    for window, missing in spans:
        window.evict(start - missing, stop - missing)


def positions_bounded(cache: Sequence[LayerCache]) -> bool:
    """Whether positions stay small however long the text: else they run on, and quality falls."""
    return all(window.position_limit for window in windows(cache))


def tokens_held(cache: Sequence[LayerCache]) -> int:
    """Tokens in the fullest window."""
    return max((window.size() for window in windows(cache)), default=0)


def tokens_evicted(cache: Sequence[LayerCache]) -> int:
    """Tokens that even the widest window has evicted."""
    # A layer that a model has, but does not use, is given none.
    return min((window.evicted for window in windows(cache) if window.total), default=0)


def bytes_held(cache: Sequence[LayerCache]) -> int:
    """Bytes allocated by all layers."""
    return sum(layer.nbytes for layer in cache)
