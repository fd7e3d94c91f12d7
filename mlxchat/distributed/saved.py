"""What several ranks hold, saved: each rank its own shard, on its own disk.

Rank 0's snapshot says by which number its shards are known; a shard that is missing, damaged, or
made by another number of ranks is none, and then the snapshot is as good as damaged.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mlxchat import paths
from mlxchat.cache import Cache, tokens_held
from mlxchat.chat.ledger import Ledger
from mlxchat.distributed.leader import Leader, SharedCache
from mlxchat.distributed.ranks import Order
from mlxchat.errors import SnapshotBroken, SnapshotError
from mlxchat.files import make_private_directory
from mlxchat.models.model import Model
from mlxchat.store import snapshot
from mlxchat.store.fingerprint import Fingerprint, ModelPrint

# A rank keeps its latest shards: as many as sessions keep snapshots, and those of a checkpoint that
# is being replaced.
SHARDS_KEPT = 13


def lead_saving(network: Leader, cache: SharedCache, outdated: int | None) -> int:
    """Let every other rank save its shard; the number that they are known by. Those of the number
    `outdated` are deleted then.

    Raises SnapshotError where one could not, RanksError where one is gone.
    """
    number = 1 + secrets.randbelow(2**31 - 1)
    ranks = network.ranks
    try:
        with ranks.in_step(), ranks.patience():
            ranks.send(Order.SAVE, network.number, cache.number, number, outdated or 0)
            failed = ranks.gather(0)
    except RuntimeError as error:
        if not ranks.is_loss(error):
            raise
        raise ranks.lost() from error
    if any(failed):
        rank = next(rank for rank, each in enumerate(failed) if each)
        raise SnapshotError(f"rank {rank} could not save its shard")
    return number


def lead_restoring(network: Leader, cache: SharedCache, number: object) -> int:
    """Let every other rank fill its shard of a cache that has been restored here, from the shards
    that are known by `number`, which is returned.

    Raises SnapshotBroken where one cannot; then `cache` must not be used.
    """
    if type(number) is not int or not 0 < number < 2**31:
        raise SnapshotBroken("the snapshot names no shards of other ranks")
    with network.ranks.in_step(), network.ranks.patience():
        network.ranks.send(Order.RESTORE, network.number, cache.number, number)
        failed = network.ranks.gather(0)
    if any(failed):
        rank = next(rank for rank, each in enumerate(failed) if each)
        raise SnapshotBroken(f"rank {rank} does not have its shard of the snapshot")
    return number


def save_shard(model: Model, cache: Cache, rank: int, number: int, *, outdated: int) -> bool:
    """Save this rank's shard, and delete the `outdated` one; whether that went well."""
    path = _path(rank, number)
    # Rank 0 alone knows which tokens they are.
    ledger = Ledger(None, 0, np.zeros(tokens_held(cache), np.int32))
    try:
        make_private_directory(path.parent)
        snapshot.take(cache, ledger, _fingerprint(model), {}).write(path)
    except OSError:
        return False
    _prune(rank, _path(rank, outdated))
    return True


def restore_shard(model: Model, empty: Cache, rank: int, number: int) -> list[Any] | None:
    """This rank's shard as it was saved; None where it is not to be had."""
    try:
        path = _path(rank, number)
        return snapshot.restore(path, model.network, empty, _fingerprint(model)).cache
    except (OSError, SnapshotError):
        return None


def _fingerprint(model: Model) -> Fingerprint:
    # Window and system prompt are rank 0's to compare.
    return ModelPrint(model).of(None, 0, None)


def _path(rank: int, number: int) -> Path:
    return paths.shards_dir() / f"rank{rank}-{number}.safetensors"


def _prune(rank: int, outdated: Path) -> None:
    """Leave the latest shards of this rank; old ones can be deleted another time as well."""
    with suppress(OSError):
        outdated.unlink(missing_ok=True)
        shards = paths.shards_dir().glob(f"rank{rank}-*.safetensors")
        for old in sorted(shards, key=lambda path: -path.stat().st_mtime_ns)[SHARDS_KEPT:]:
            old.unlink()
