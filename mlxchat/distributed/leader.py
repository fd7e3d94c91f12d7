"""Rank 0's side: a network and caches whose operations run on all ranks.

Callers use them like any others. The other ranks are sent an order before each forward pass, and
all ranks then launch it alike: `mx.eval` of the result needs nothing more from another rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxchat.cache import Cache, check_bound, make_cache
from mlxchat.cache.layers import LayerCache, windows
from mlxchat.distributed.ranks import Order, Ranks


class SharedCache(Cache):
    """Rank 0's shard of a cache; the other ranks know their shards by the same `number`."""

    def __init__(self, layers: Sequence[LayerCache], ranks: Ranks, number: int) -> None:
        super().__init__(layers)
        self._ranks = ranks
        self.number = number
        weakref.finalize(self, ranks.drop, number)

    def fork(self) -> SharedCache:
        layers, number = super().fork(), self._ranks.new_number()
        with self._ranks.in_step():
            self._ranks.send(Order.FORK, self.number, number)
        return SharedCache(layers, self._ranks, number)

    # Refusals come before the order is sent to the other ranks.

    def rewind(self, n: int) -> None:
        self._check_rewindable()
        with self._ranks.in_step():
            self._ranks.send(Order.REWIND, self.number, n)
        super().rewind(n)

    def evict(self, start: int, stop: int) -> None:
        self._check_evictable(start, stop)
        with self._ranks.in_step():
            self._ranks.send(Order.EVICT, self.number, start, stop)
        super().evict(start, stop)


class Leader(nn.Module):
    """A network divided among the ranks: `own` is this rank's shard.

    Called like any network. For one token it returns the logits. For several, as in prefill, it
    returns nothing, and the cache's state has been evaluated.
    """

    def __init__(self, own: nn.Module, ranks: Ranks, number: int) -> None:
        super().__init__()
        self.own = own
        self.ranks = ranks
        self.number = number
        weakref.finalize(self, ranks.drop, number)

    def __call__(self, tokens: mx.array, cache: SharedCache) -> Any:
        """`tokens: (1, S)`; returns logits `(1, 1, V)` if S is 1."""
        with self.ranks.in_step():
            self.ranks.send(Order.FORWARD, self.number, cache.number, tokens.shape[1])
            _, logits = run_shard(self.ranks, self.own, tokens, cache)
            return logits

    def make_cache(self, max_kv_size: int | None, keep: int) -> SharedCache:
        """Make a cache of which each rank has a shard. Raises CacheError like `make_shard`."""
        check_bound(self.own, max_kv_size, keep)
        number = self.ranks.new_number()
        with self.ranks.in_step():
            window = -1 if max_kv_size is None else max_kv_size
            self.ranks.send(Order.NEW_CACHE, self.number, number, window, keep)
            shard = make_shard(self.own, max_kv_size, keep, self.ranks)
            return SharedCache(shard, self.ranks, number)

    def free_memory_bytes(self) -> int:
        """The minimum of the free memory over all ranks, in bytes."""
        with self.ranks.in_step():
            self.ranks.send(Order.FREE_MEMORY)
            return self.ranks.min_free_memory_bytes()


def make_shard(shard: nn.Module, max_kv_size: int | None, keep: int, ranks: Ranks) -> Cache:
    """Make this rank's shard of a cache, at the same time as all the other ranks.

    If the keys can be moved on some ranks only, they are moved on none.
    """
    with ranks.timeout():
        cache = make_cache(shard, max_kv_size, keep)
        limit = min((window.position_limit or 0 for window in windows(cache)), default=0)
        movable = all(window.shift is not None for window in windows(cache))
        if len(set(ranks.gather(limit))) > 1 or len(set(ranks.gather(movable))) > 1:
            for window in windows(cache):
                window.shift = window.position_limit = None
    return cache


def run_shard(
    ranks: Ranks, shard: nn.Module, tokens: mx.array, cache: Cache
) -> tuple[mx.array, mx.array | None]:
    """Run this rank's shard on rank 0's `tokens: (1, S)`, launching all that other ranks wait for.

    Returns the tokens, and the logits if S is 1. Which sums are computed depends on what is
    evaluated, so all ranks evaluate the same: the logits for one token, else the cache's state.
    """
    # Launching also waits if too much has been launched already.
    with ranks.timeout():
        ids = ranks.share(tokens)
        logits = shard(ids, cache=cache)
        if tokens.shape[1] > 1:
            mx.eval([layer.state for layer in cache])
            return ids, None
        # Not a slice, which would keep all logits alive.
        largest = logits.max()
        mx.async_eval(logits, largest)
    ranks.expect(largest)
    return ids, logits
