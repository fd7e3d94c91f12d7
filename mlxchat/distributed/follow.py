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

    def run(self) -> None:
        order = None
        while order is not Order.STOP:
            order, numbers, dropped = self._ranks.receive()
            for number in dropped:
                self._held.pop(number, None)
                self._prefixes.drop(number)
            self._obey(order, numbers)
        self._prefixes.close()

    def _obey(self, order: Order, numbers: list[int]) -> None:
        held, ranks = self._held, self._ranks
        match order, *numbers:
            case Order.STOP, *_:
                # Computation in progress must not outlive the interpreter.
                with ranks.timeout():
                    platform.synchronize()
            case Order.LOAD, number, *_:
                self.is_loading = True
                model = self._load(ranks)
                self.is_loading = False
                if model is not None:
                    held[number] = model
            case Order.NEW_CACHE, model, number, window, keep:
                held[number] = make_shard(held[model].network, _window(window), keep, ranks)
            case Order.FORWARD, model, cache, tokens, _:
                self._forward(held[model], cache, tokens)
            case Order.FORK, cache, number, *_:
                held[number] = held[cache].fork()
            case Order.REWIND, cache, n, *_:
                held[cache].rewind(n)
            case Order.EVICT, cache, start, stop, _:
                held[cache].evict(start, stop)
            case Order.FREE_MEMORY, *_:
                ranks.min_free_memory_bytes()
            case Order.SAVE, model, cache, number, outdated:
                shard, rank = held[cache], ranks.rank
                ranks.gather(not save_shard(held[model], shard, rank, number, outdated=outdated))
            case Order.RESTORE, model, cache, number, _:
                ranks.gather(not self._restore(held[model], cache, number))
            case Order.PREFIX, model, cache, tokens, window:
                self._prefixes.fill(
                    model, held[model], cache, held[cache], tokens=tokens, window=_window(window)
                )

    def _restore(self, model: Model, cache: int, number: int) -> bool:
        shard = restore_shard(model, self._held[cache], self._ranks.rank, number)
        if shard is not None:
            self._held[cache] = shard
        return shard is not None

    def _forward(self, model: Model, cache: int, tokens: int) -> None:
        none = mx.zeros((1, tokens), dtype=mx.int32)
        ids = run_shard(self._ranks, model.network, none, self._held[cache])[0]
        self._prefixes.hold(cache, ids)
        self._forwards += 1
        if tokens > 1 or self._forwards % CLEAR_EVERY == 0:
            mx.clear_cache()


def _window(sent: int) -> int | None:
    """Rank 0 sends -1 for no limit."""
    return None if sent < 0 else sent
