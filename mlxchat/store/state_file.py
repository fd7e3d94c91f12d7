"""The latest snapshot of something that goes on, in one file that each new one replaces.

It is written in a thread of its own. If several ranks hold the cache, each other rank saves its
shard on its own disk, and the file names the shards that belong to it.
"""

from pathlib import Path
from typing import Any

from mlxchat.cache import Cache
from mlxchat.chat.ledger import Ledger
from mlxchat.models.model import Model, Peers
from mlxchat.store import snapshot
from mlxchat.store.background import Background
from mlxchat.store.fingerprint import Fingerprint
from mlxchat.store.snapshot import Restored

SHARDS = "shards"


class StateFile:
    """The file at `path`, by one process alone. What became of writing it, `background` tells."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.background = Background()
        # The number of the shards that the file on the disk names, and of all that were saved.
        self._named: int | None = None
        self._saved: list[int] = []

    def save(
        self,
        model: Model,
        cache: Cache,
        ledger: Ledger,
        fingerprint: Fingerprint,
        facts: dict[str, Any],
    ) -> None:
        """Hold the state still and begin to write it; `facts` are the caller's own, for JSON.

        Raises SnapshotError where another rank could not save its shard, with the state before
        still whole, and RanksError where one is gone.
        """
        number = None
        if model.peers is not None:
            number = self._save_shards(model.peers, cache)
            facts = facts | {SHARDS: number}
        taken = snapshot.take(cache, ledger, fingerprint, facts)

        def write() -> int:
            size_bytes = taken.write(self.path)
            self._named = number
            return size_bytes

        self.background.run(write)

    def restore(self, model: Model, empty: Cache, fingerprint: Fingerprint) -> Restored | None:
        """What the file holds, in a fork of `empty`; None where there is no file.

        Raises what `snapshot.restore` raises, SnapshotBroken where a shard is missing, and
        RanksError where a rank is gone.
        """
        if not self.path.exists():
            return None
        restored = snapshot.restore(self.path, model.shard, empty, fingerprint)
        if model.peers is not None:
            self._named = model.peers.restore(restored.cache, restored.facts.get(SHARDS))
            self._saved = [self._named]
        return restored

    def _save_shards(self, peers: Peers, cache: Cache) -> int:
        # Only when it is known which shards the file names are the others of no use.
        self.background.wait()
        outdated = next((number for number in self._saved if number != self._named), None)
        number = peers.save(cache, outdated)
        self._saved = [each for each in self._saved if each != outdated] + [number]
        return number
