"""The other ranks' side: carry out rank 0's orders on this rank's shard of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mlxchat import platform
from mlxchat.distributed.kept import FollowedPrefixes, restore_shard, save_shard
from mlxchat.distributed.leader import make_shard, run_shard
from mlxchat.distributed.ranks import Order, Ranks
from mlxchat.models.model import Model

# MLX keeps freed buffers for reuse; they are released after this many forward passes.
CLEAR_EVERY = 256

Load = Callable[[Ranks], Model | None]


def follow(ranks: Ranks, load: Load) -> None:
    """Follow rank 0 until it stops. `load` loads the model that rank 0 names, on all ranks; it
    returns None if any rank failed.

    Raises RanksError if a rank is lost. While a model is loading, rank 0 may simply exit.
    """
    follower = _Follower(ranks, load)
    try:
        follower.run()
        follower.close()
    except RuntimeError as error:
        if not ranks.is_loss(error):
            raise
        if not follower.is_loading:
            raise ranks.lost() from error


class _Follower:
    def __init__(self, ranks: Ranks, load: Load) -> None:
        self._ranks = ranks
        self._load = load
        # Models and caches by the numbers that rank 0 gave them.
        self._held: dict[int, Any] = {}
        self._prefixes = FollowedPrefixes(ranks)
        self._forwards = 0
        self.is_loading = False
        self._orders: dict[Order, Callable[[int, int, int, int], None]] = {
            Order.LOAD: self._load_model,
            Order.NEW_CACHE: self._new_cache,
            Order.FORWARD: self._forward,
            Order.FORK: self._fork,
            Order.REWIND: self._rewind,
            Order.EVICT: self._evict,
            Order.FREE_MEMORY: self._free_memory,
            Order.SAVE: self._save,
            Order.RESTORE: self._restore,
            Order.PREFIX: self._prefix,
        }

    def run(self) -> None:
        while True:
            order, numbers, dropped = self._ranks.receive()
            for number in dropped:
                self._held.pop(number, None)
                self._prefixes.drop(number)
            if order is Order.STOP:
                # Computation in progress must not outlive the interpreter.
                with self._ranks.timeout():
                    platform.synchronize()
                return
            a, b, c, d = numbers
            self._orders[order](a, b, c, d)

    def close(self) -> None:
        self._prefixes.close()

    def _load_model(self, number: int, *_: int) -> None:
        self.is_loading = True
        model = self._load(self._ranks)
        self.is_loading = False
        if model is not None:
            self._held[number] = model

    def _new_cache(self, model: int, number: int, window: int, keep: int) -> None:
        max_kv_size = None if window < 0 else window
        self._held[number] = make_shard(self._held[model].network, max_kv_size, keep, self._ranks)

    def _forward(self, model: int, cache: int, tokens: int, _: int) -> None:
        none = mx.zeros((1, tokens), dtype=mx.int32)
        ids = run_shard(self._ranks, self._held[model].network, none, self._held[cache])[0]
        self._prefixes.hold(cache, ids)
        self._forwards += 1
        if tokens > 1 or self._forwards % CLEAR_EVERY == 0:
            mx.clear_cache()

    def _fork(self, cache: int, number: int, *_: int) -> None:
        self._held[number] = self._held[cache].fork()

    def _rewind(self, cache: int, n: int, *_: int) -> None:
        self._held[cache].rewind(n)

    def _evict(self, cache: int, start: int, stop: int, _: int) -> None:
        self._held[cache].evict(start, stop)

    def _free_memory(self, *_: int) -> None:
        self._ranks.min_free_memory_bytes()

    def _save(self, model: int, cache: int, number: int, outdated: int) -> None:
        saved = save_shard(
            self._held[model], self._held[cache], self._ranks.rank, number, outdated=outdated
        )
        self._ranks.gather(not saved)

    def _restore(self, model: int, cache: int, number: int, _: int) -> None:
        shard = restore_shard(self._held[model], self._held[cache], self._ranks.rank, number)
        if shard is not None:
            self._held[cache] = shard
        self._ranks.gather(shard is None)

    def _prefix(self, model: int, cache: int, tokens: int, window: int) -> None:
        self._prefixes.fill(
            model,
            self._held[model],
            cache,
            self._held[cache],
            tokens=tokens,
            window=None if window < 0 else window,
        )
