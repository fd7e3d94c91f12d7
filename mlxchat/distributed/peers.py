"""The other ranks, as the `models.model.Peers` protocol."""

from typing import Any

from mlx import nn

from mlxchat.cache import Cache
from mlxchat.distributed.leader import Leader
from mlxchat.distributed.prefixes import lead_prefix
from mlxchat.distributed.saved import lead_restoring, lead_saving
from mlxchat.engine.loops import OnHeld
from mlxchat.models.model import Prefixes
from mlxchat.text.spans import TokenIds


class RankPeers:
    """Rank 0's `Peers`: the ranks that follow `leader`."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    @property
    def shard(self) -> nn.Module:
        return self._leader.own

    @property
    def ranks(self) -> int:
        return self._leader.ranks.size

    def make_cache(self, max_kv_size: int | None, keep: int) -> Cache:
        return self._leader.make_cache(max_kv_size, keep)

    def free_memory_bytes(self) -> int:
        return self._leader.free_memory_bytes()

    def save(self, cache: Any, outdated: int | None) -> int:
        return lead_saving(self._leader, cache, outdated)

    def restore(self, cache: Any, number: object) -> int:
        return lead_restoring(self._leader, cache, number)

    def begin_prefix(
        self, prefixes: Prefixes, cache: Any, ids: TokenIds, window: int | None
    ) -> tuple[int, OnHeld | None]:
        return lead_prefix(self._leader, cache, prefixes, ids, window)
