"""A network and caches of which each rank has a shard. Callers use them like any others: what
rank 0 calls, all ranks do.

Each rank keeps its shards of snapshots, and of the pages of prefixes, on its own disk. Rank 0's
snapshot has the number by which they are known. A shard that is missing, damaged or made with a
different number of ranks makes the whole snapshot unusable. A prefix can be used once all ranks
have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import finalize

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat import paths, platform
from mlxchat.cache import Cache, make_cache, tokens_held
from mlxchat.cache.layers import LayerCache, windows
from mlxchat.chat.window import Ledger
from mlxchat.distributed.ranks import Ranks, together
from mlxchat.engine.prefill import OnHeld
from mlxchat.errors import SnapshotBroken, SnapshotError
from mlxchat.files import make_private_directory
from mlxchat.models.model import Model, StoredPrefixes
from mlxchat.store import snapshot
from mlxchat.store.prefix_cache import PrefixCache
from mlxchat.store.snapshot import Fingerprint, ModelPrint
from mlxchat.text.spans import TokenIds

# Memory sizes in this unit have 31 bits.
KIB = 1024

# The number of shards a rank keeps, latest first: as many as sessions keep snapshots, plus those of
# a checkpoint being replaced.
SHARDS_KEPT = 13


class SharedNetwork(nn.Module):
    """A network divided among the ranks, of which `own` is this rank's shard; and, as `Peers`, what
    the other ranks do with theirs.

    Called like any network. For one token it returns the logits. For several, as in prefill, it
    returns nothing, and the cache's state has been evaluated.
    """

    def __init__(self, model: Model, ranks: Ranks) -> None:
        super().__init__()
        self.own = model.network
        self.ranks = ranks
        self._model = model
        self._prefixes: PrefixCache | None = None
        self.number = ranks.add(self)

    def __call__(self, tokens: mx.array, cache: SharedCache) -> Any:
        """`tokens: (1, S)`; returns logits `(1, 1, V)` if S is 1."""
        if tokens.shape[1] == 1:
            with self.ranks.in_step():
                self.ranks.send_token(cache, tokens)
                return cache.step(tokens)
        return cache.read(np.array(tokens).tolist())

    @property
    def shard(self) -> nn.Module:
        return self.own

    @property
    def size(self) -> int:
        return self.ranks.size

    @together
    def make_cache(self, max_kv_size: int | None, keep: int) -> SharedCache:
        """Make a cache of which each rank has a shard. Raises CacheError like `make_cache`."""
        ranks = self.ranks
        layers = make_cache(self.own, max_kv_size, keep)
        limit = min((window.position_limit or 0 for window in windows(layers)), default=0)
        movable = all(window.shift is not None for window in windows(layers))
        # If the keys can be moved on some ranks only, they are moved on none.
        if len(set(ranks.gather(limit))) > 1 or len(set(ranks.gather(movable))) > 1:
            for window in windows(layers):
                window.shift = window.position_limit = None
        return SharedCache(layers, self)

    @together
    def free_memory_bytes(self) -> int:
        return min(self.ranks.gather(platform.free_memory_bytes() // KIB)) * KIB

    def save(self, cache: Any, number: int) -> None:
        cache.save(number)

    def restore(self, cache: Any, number: object) -> int:
        if type(number) is not int or not 0 < number < 2**31:
            raise SnapshotBroken("the snapshot has no shards on other ranks")
        cache.restore(number)
        return number

    def begin_prefix(
        self, prefixes: StoredPrefixes, cache: Any, ids: TokenIds, window: int | None
    ) -> int:
        return cache.begin_prefix(ids.tolist(), window, prefixes.limit_bytes, prefixes=prefixes)

    def prefixes(self, limit_bytes: int) -> PrefixCache:
        """The prefixes stored on this rank's disk."""
        if self._prefixes is None:
            self._prefixes = PrefixCache(paths.prefix_cache_dir(), self._model, limit_bytes)
            # Waits until all pages are written.
            finalize(self, self._prefixes.close)
        return self._prefixes

    def fingerprint(self) -> Fingerprint:
        """Identifies this rank's shard. Rank 0 compares the window and the system prompt."""
        return ModelPrint(self._model).of(None, 0, None)


class SharedCache(Cache):
    """This rank's shard of a cache."""

    def __init__(self, layers: Sequence[LayerCache], network: SharedNetwork) -> None:
        super().__init__(layers)
        self.ranks = network.ranks
        self._network = network
        # Stores the pages of the prompt that is being read.
        self._record: OnHeld | None = None
        self.number = self.ranks.add(self)

    @together
    def fork(self) -> SharedCache:
        return SharedCache(super().fork(), self._network)

    @together
    def rewind(self, n: int) -> None:
        super().rewind(n)

    @together
    def evict(self, start: int, stop: int) -> None:
        super().evict(start, stop)

    # Which sums are computed depends on what is evaluated, so all ranks evaluate the same.

    @together
    def read(self, tokens: list[list[int]]) -> None:
        """Add `tokens: (1, S)`."""
        with self.ranks.watchdog.timeout():
            self._network.own(mx.array(tokens), cache=self)
            mx.eval([layer.state for layer in self])
            mx.clear_cache()
        if self._record is not None:
            self._record(np.array(tokens[0]))

    def step(self, token: mx.array) -> mx.array:
        """Begin to compute the logits `(1, 1, V)` after `token: (1, 1)`, on all ranks."""
        # The prompt is done, or nearly: looking at every token would wait for it.
        self._record = None
        # Launching also waits if too much has been launched already.
        with self.ranks.watchdog.timeout():
            logits = self._network.own(token, cache=self)
            # Not a slice, which would keep all logits alive.
            largest = logits.max()
            mx.async_eval(logits, largest)
        self.ranks.watchdog.expect(largest)
        return logits

    @together
    def begin_prefix(
        self,
        tokens: list[int],
        window: int | None,
        limit_bytes: int,
        *,
        prefixes: StoredPrefixes | None = None,
    ) -> int:
        """Fill the empty cache with what all ranks have stored of `tokens: (T,)`, and store the
        rest as it is read; return the number of tokens filled."""
        ranks, ids = self.ranks, np.array(tokens, np.int32)
        prefixes = prefixes or self._network.prefixes(limit_bytes)
        agreed = min(ranks.gather(prefixes.known(self, ids, window)))
        if agreed:
            filled = Cache(self).fork()
            count = prefixes.fill(filled, ids[: agreed + 1], window)
            # A page that one rank failed to read is useless to the others.
            agreed = agreed if set(ranks.gather(count)) == {agreed} else 0
            if agreed:
                self[:] = filled
        self._record = prefixes.recorder(self, ids, agreed, window)
        return agreed

    # Rank 0 saves its own shard in the snapshot.

    @together
    def save(self, number: int) -> None:
        """Save every other rank's shard."""
        failed = False
        if not self.ranks.leads:
            try:
                make_private_directory(paths.shards_dir())
                # Only rank 0 knows which tokens they are.
                ledger = Ledger(None, 0, np.zeros(tokens_held(self), np.int32))
                shard = snapshot.take(self, ledger, self._network.fingerprint(), {})
                shard.write(self._path(number))
                self._prune()
            except OSError:
                failed = True
        for rank in self._failed(failed):
            raise SnapshotError(f"rank {rank} could not save its shard")

    @together
    def restore(self, number: int) -> None:
        """Restore every other rank's shard."""
        failed = False
        if not self.ranks.leads:
            try:
                fingerprint = self._network.fingerprint()
                self[:] = snapshot.restore(self._path(number), Cache(self), fingerprint).cache
            except (OSError, SnapshotError):
                failed = True
        for rank in self._failed(failed):
            raise SnapshotBroken(f"rank {rank} does not have its shard of the snapshot")

    def _failed(self, failed: bool) -> list[int]:
        return [rank for rank, has in enumerate(self.ranks.gather(failed)) if has]

    def _path(self, number: int) -> Path:
        return paths.shards_dir() / f"rank{self.ranks.rank}-{number}.safetensors"

    def _prune(self) -> None:
        """Delete all but this rank's latest shards. Errors are ignored: the next call tries
        again."""
        with suppress(OSError):
            shards = paths.shards_dir().glob(f"rank{self.ranks.rank}-*.safetensors")
            for old in sorted(shards, key=lambda path: -path.stat().st_mtime_ns)[SHARDS_KEPT:]:
                old.unlink()
