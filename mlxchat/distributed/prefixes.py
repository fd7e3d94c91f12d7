"""The prefix cache on several ranks: each keeps its shard of every page on its own disk.

A prefix can be used once all ranks have it.
"""

import mlx.core as mx
import numpy as np

from mlxchat import paths
from mlxchat.cache import Cache
from mlxchat.distributed.leader import Leader, SharedCache
from mlxchat.distributed.ranks import KIB, Order, Ranks
from mlxchat.engine.loops import OnHeld
from mlxchat.models.model import Model, Prefixes
from mlxchat.store.prefix_cache import PrefixCache
from mlxchat.text.spans import TokenIds

# The largest number that ranks can send.
MAX_SENT = 2**31 - 1


def lead_prefix(
    network: Leader, cache: SharedCache, pages: Prefixes, ids: TokenIds, window: int | None
) -> tuple[int, OnHeld | None]:
    """Fill the empty cache, on all ranks, with the longest prefix of `ids: (T,)` that all have.

    Returns its length in tokens, and a callback for the ids of each step prefilled here.
    """
    ranks = network.ranks
    with ranks.in_step():
        width = -1 if window is None else window
        ranks.send(Order.PREFIX, network.number, cache.number, len(ids), width)
        ranks.share(mx.array([min(pages.limit_bytes // KIB, MAX_SENT), *ids.tolist()]))
        return _agree(ranks, pages, cache, ids, window)


class FollowedPrefixes:
    """The follower's side. Models and caches are known by their numbers."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._pages: dict[int, PrefixCache] = {}
        self._records: dict[int, OnHeld | None] = {}

    def fill(
        self,
        model_number: int,
        model: Model,
        cache_number: int,
        cache: Cache,
        *,
        tokens: int,
        window: int | None,
    ) -> None:
        """The counterpart of `lead_prefix`, for a prompt of `tokens` ids."""
        with self._ranks.timeout():
            sent = np.array(self._ranks.share(mx.zeros((1 + tokens,), mx.int32)))
        if model_number not in self._pages:
            limit_bytes = int(sent[0]) * KIB
            self._pages[model_number] = PrefixCache(paths.prefix_cache_dir(), model, limit_bytes)
        pages = self._pages[model_number]
        _, self._records[cache_number] = _agree(self._ranks, pages, cache, sent[1:], window)

    def hold(self, cache_number: int, ids: mx.array) -> None:
        """Note that a cache has been given `ids: (1, S)`."""
        if ids.shape[1] > 1:
            if record := self._records.get(cache_number):
                record(np.array(ids[0]))
        else:
            # The prompt is done, or nearly: looking at every token would wait for it.
            self._records.pop(cache_number, None)

    def drop(self, number: int) -> None:
        """Forget a model or a cache that is no longer used."""
        self._records.pop(number, None)
        if number in self._pages:
            self._pages.pop(number).close()

    def close(self) -> None:
        """Wait until all pages are written."""
        for number in list(self._pages):
            self.drop(number)


def _agree(
    ranks: Ranks, pages: Prefixes, cache: Cache, ids: TokenIds, window: int | None
) -> tuple[int, OnHeld | None]:
    with ranks.timeout():
        agreed = min(ranks.gather(pages.known(cache, ids, window)))
    if agreed:
        filled = Cache(cache).fork()
        tokens = pages.fill(filled, ids[: agreed + 1], window)
        with ranks.timeout():
            # A page that one rank failed to read is useless to the others.
            agreed = agreed if set(ranks.gather(tokens)) == {agreed} else 0
        if agreed:
            cache[:] = filled
    return agreed, pages.recorder(cache, ids, agreed, window)
