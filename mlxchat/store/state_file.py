"""The latest snapshot of an ongoing conversation or run, in a file that each new one replaces.

Writing happens in another thread. If several ranks share the cache, each other rank saves its shard
on its own disk, and the file lists the shards that belong to it.
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
    """The file at `path`, used by one process only. `background` reports the results of writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.background = Background()
        # Numbers of the shards that the file on the disk lists, and of the last ones saved.
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
        """Freeze the state and start to write it; `facts` are the caller's own, as JSON.

        Raises SnapshotError if another rank could not save its shard, which leaves the previous
        state intact, and RanksError if a rank is lost.
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
        """The contents of the file, in a fork of `empty`; None if there is no file.

        Raises what `snapshot.restore` raises, SnapshotBroken if a shard is missing, RanksError if
        a rank is lost.
        """
        try:
            restored = snapshot.restore(self.path, model.shard, empty, fingerprint)
        except FileNotFoundError:
            return None
        if model.peers is not None:
            self._named = model.peers.restore(restored.cache, restored.facts.pop(SHARDS, None))
            self._saved = [self._named]
        return restored

    def _save_shards(self, peers: Peers, cache: Cache) -> int:
        # Old shards can be removed only once it is known which ones the file lists.
        self.background.wait()
        outdated = next((number for number in self._saved if number != self._named), None)
        number = peers.save(cache, outdated)
        self._saved = [each for each in self._saved if each != outdated] + [number]
        return number
