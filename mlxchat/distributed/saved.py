"""Save a cache shared by several ranks: each saves its own shard to its own disk.

Rank 0's snapshot has the number by which its shards are known. A shard that is missing, damaged or
made with a different number of ranks makes the whole snapshot unusable.
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

# The number of shards a rank keeps, latest first: as many as sessions keep snapshots, plus those of
# a checkpoint being replaced.
SHARDS_KEPT = 13


def lead_saving(network: Leader, cache: SharedCache, outdated: int | None) -> int:
    """Make every other rank save its shard; return the number by which the shards are known.

    Shards with the number `outdated` are then deleted. Raises SnapshotError if a rank could not
    save its shard, RanksError if one is lost.
    """
    number = 1 + secrets.randbelow(2**31 - 1)
    ranks = network.ranks
    try:
        with ranks.in_step(), ranks.timeout():
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
    """Make every other rank restore its shard of a cache already restored here; return `number`.

    `number` identifies the shards. Raises SnapshotBroken if a rank cannot restore its shard; then
    `cache` must not be used.
    """
    if type(number) is not int or not 0 < number < 2**31:
        raise SnapshotBroken("the snapshot has no shards on other ranks")
    with network.ranks.in_step(), network.ranks.timeout():
        network.ranks.send(Order.RESTORE, network.number, cache.number, number)
        failed = network.ranks.gather(0)
    if any(failed):
        rank = next(rank for rank, each in enumerate(failed) if each)
        raise SnapshotBroken(f"rank {rank} does not have its shard of the snapshot")
    return number


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
        return snapshot.restore(path, model.network, empty, _fingerprint(model)).cache
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
