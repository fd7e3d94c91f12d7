"""Rank 0's side: a network and caches whose operations run on all ranks.

Callers use them like any others. The other ranks are sent an order before each forward pass, and
all ranks then launch it alike: `mx.eval` of the result needs nothing more from another rank.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxchat.cache import Cache, check_bound, make_cache
from mlxchat.cache.layers import LayerCache, windows
from mlxchat.distributed.kept import agree_on_prefix
from mlxchat.distributed.ranks import KIB, MAX_SENT, Order, Ranks
from mlxchat.engine.prefill import OnHeld
from mlxchat.errors import SnapshotBroken, SnapshotError
from mlxchat.models.model import StoredPrefixes
from mlxchat.text.spans import TokenIds


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
    """A network divided among the ranks, of which `own` is this rank's shard; and, as `Peers`, what
    the other ranks do with theirs.

    Called like any network. For one token it returns the logits. For several, as in prefill, it
    returns nothing, and the cache's state has been evaluated.
    """

    def __init__(self, own: nn.Module, ranks: Ranks, number: int) -> None:
        super().__init__()
        self.own = own
        self._ranks = ranks
        self.number = number
        weakref.finalize(self, ranks.drop, number)

    def __call__(self, tokens: mx.array, cache: SharedCache) -> Any:
        """`tokens: (1, S)`; returns logits `(1, 1, V)` if S is 1."""
        with self._ranks.in_step():
            self._ranks.send(Order.FORWARD, self.number, cache.number, tokens.shape[1])
            _, logits = run_shard(self._ranks, self.own, tokens, cache)
            return logits

    @property
    def shard(self) -> nn.Module:
        return self.own

    @property
    def ranks(self) -> int:
        return self._ranks.size

    def make_cache(self, max_kv_size: int | None, keep: int) -> SharedCache:
        """Make a cache of which each rank has a shard. Raises CacheError like `make_shard`."""
        check_bound(self.own, max_kv_size, keep)
        number = self._ranks.new_number()
        with self._ranks.in_step():
            window = -1 if max_kv_size is None else max_kv_size
            self._ranks.send(Order.NEW_CACHE, self.number, number, window, keep)
            shard = make_shard(self.own, max_kv_size, keep, self._ranks)
            return SharedCache(shard, self._ranks, number)

    def free_memory_bytes(self) -> int:
        with self._ranks.in_step():
            self._ranks.send(Order.FREE_MEMORY)
            return self._ranks.min_free_memory_bytes()

    def save(self, cache: Any, outdated: int | None) -> int:
        number = 1 + secrets.randbelow(2**31 - 1)
        try:
            rank = self._failing(Order.SAVE, cache.number, number, outdated or 0)
        except RuntimeError as error:
            if not self._ranks.is_loss(error):
                raise
            raise self._ranks.lost() from error
        if rank is not None:
            raise SnapshotError(f"rank {rank} could not save its shard")
        return number

    def restore(self, cache: Any, number: object) -> int:
        if type(number) is not int or not 0 < number < 2**31:
            raise SnapshotBroken("the snapshot has no shards on other ranks")
        rank = self._failing(Order.RESTORE, cache.number, number)
        if rank is not None:
            raise SnapshotBroken(f"rank {rank} does not have its shard of the snapshot")
        return number

    def begin_prefix(
        self, prefixes: StoredPrefixes, cache: Any, ids: TokenIds, window: int | None
    ) -> tuple[int, OnHeld | None]:
        with self._ranks.in_step():
            width = -1 if window is None else window
            self._ranks.send(Order.PREFIX, self.number, cache.number, len(ids), width)
            limit = min(prefixes.limit_bytes // KIB, MAX_SENT)
            self._ranks.share(mx.array([limit, *ids.tolist()]))
            return agree_on_prefix(self._ranks, prefixes, cache, ids, window)

    def _failing(self, order: Order, *numbers: int) -> int | None:
        """Give an order that every other rank answers; return the first that failed, if any."""
        with self._ranks.in_step(), self._ranks.timeout():
            self._ranks.send(order, self.number, *numbers)
            failed = self._ranks.gather(0)
        return next((rank for rank, has_failed in enumerate(failed) if has_failed), None)


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
