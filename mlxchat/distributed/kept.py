"""What each rank keeps on its own disk of a model divided among several: shards of snapshots, and
of the pages of prefixes.

Rank 0's snapshot has the number by which its shards are known. A shard that is missing, damaged or
made with a different number of ranks makes the whole snapshot unusable. A prefix can be used once
all ranks have it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxchat import paths
from mlxchat.cache import Cache, tokens_held
from mlxchat.chat.ledger import Ledger
from mlxchat.distributed.ranks import KIB, Ranks
from mlxchat.engine.prefill import OnHeld
from mlxchat.errors import SnapshotError
from mlxchat.files import make_private_directory
from mlxchat.models.model import Model, StoredPrefixes
from mlxchat.store import snapshot
from mlxchat.store.fingerprint import Fingerprint, ModelPrint
from mlxchat.store.prefix_cache import PrefixCache
from mlxchat.text.spans import TokenIds

# The number of shards a rank keeps, latest first: as many as sessions keep snapshots, plus those of
# a checkpoint being replaced.
SHARDS_KEPT = 13


def save_shard(model: Model, cache: Cache, rank: int, number: int, *, outdated: int) -> bool:
    """Save this rank's shard and delete the `outdated` one; return whether that succeeded."""
    path = _path(rank, number)
    # Only rank 0 knows which tokens they are.
    ledger = Ledger(None, 0, np.zeros(tokens_held(cache), np.int32))
    try:
        make_private_directory(path.parent)
        snapshot.take(cache, ledger, _fingerprint(model), {}).write(path)
    except OSError:
        return False
    _prune(rank, _path(rank, outdated))
    return True


def restore_shard(model: Model, empty: Cache, rank: int, number: int) -> list[Any] | None:
    """This rank's shard as saved; None if it cannot be restored."""
    try:
        path = _path(rank, number)
        return snapshot.restore(path, empty, _fingerprint(model)).cache
    except (OSError, SnapshotError):
        return None


def _fingerprint(model: Model) -> Fingerprint:
    # Rank 0 compares the window and the system prompt.
    return ModelPrint(model).of(None, 0, None)


def _path(rank: int, number: int) -> Path:
    return paths.shards_dir() / f"rank{rank}-{number}.safetensors"


def _prune(rank: int, outdated: Path) -> None:
    """Delete all but this rank's latest shards. Errors are ignored: the next call tries again."""
    with suppress(OSError):
        outdated.unlink(missing_ok=True)
        shards = paths.shards_dir().glob(f"rank{rank}-*.safetensors")
        for old in sorted(shards, key=lambda path: -path.stat().st_mtime_ns)[SHARDS_KEPT:]:
            old.unlink()


def agree_on_prefix(
    ranks: Ranks, pages: StoredPrefixes, cache: Cache, ids: TokenIds, window: int | None
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
        _, self._records[cache_number] = agree_on_prefix(
            self._ranks, pages, cache, sent[1:], window
        )

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
