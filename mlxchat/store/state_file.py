"""The latest snapshot of an ongoing conversation or run, in a file that each new one replaces.

Writing happens in another thread, while the next tokens are computed. If several ranks share the
cache, each other rank saves its shard on its own disk, and the file lists the shards that belong to
it.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxchat.cache import Cache
from mlxchat.chat.ledger import Ledger
from mlxchat.models.model import Model
from mlxchat.store import snapshot
from mlxchat.store.fingerprint import Fingerprint
from mlxchat.store.snapshot import Restored

SHARDS = "shards"


@dataclass(frozen=True, slots=True)
class Written:
    """The bytes a job wrote, and the seconds it took."""

    size_bytes: int
    seconds: float


class Background:
    """Runs jobs that write a file and return its size in bytes, in order, in another thread.
    `written` describes the last one that succeeded.

    A job finishes before the interpreter exits.
    """

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writer")
        self._jobs: deque[Future[None]] = deque()
        self._result: Written | OSError | None = None
        self.written: Written | None = None

    @property
    def busy(self) -> bool:
        return not all(job.done() for job in self._jobs)

    def run(self, job: Callable[[], int]) -> None:
        """Add a job, after waiting until it and those before it are no more than the `most`."""
        self.wait(self._most - 1)
        self._jobs.append(self._thread.submit(self._do, job))

    def wait(self, left: int = 0) -> None:
        """Wait until no more than these jobs are left."""
        while len(self._jobs) > left:
            self._jobs.popleft().result()

    def take_result(self) -> Written | OSError | None:
        """The result of the last finished job, once; then None."""
        result, self._result = self._result, None
        return result

    def _do(self, job: Callable[[], int]) -> None:
        started_s = time.perf_counter()
        try:
            size_bytes = job()
        except OSError as error:
            self._result = error
        else:
            self.written = self._result = Written(size_bytes, time.perf_counter() - started_s)


class StateFile:
    """The file at `path`, used by one process only. `background` reports the results of writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.background = Background()
        # Numbers of the shards that the next file lists, and of those that the last one listed.
        self._next, self._listed = (1 + secrets.randbelow(2**31 - 1) for _ in range(2))

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
        if model.peers is not None:
            # Until it is written, the file lists the other shards.
            self.background.wait()
            model.peers.save(cache, self._next)
            facts = facts | {SHARDS: self._next}
        taken = snapshot.take(cache, ledger, fingerprint, facts)

        def write() -> int:
            size_bytes = taken.write(self.path)
            self._next, self._listed = self._listed, self._next
            return size_bytes

        self.background.run(write)

    def restore(self, model: Model, empty: Cache, fingerprint: Fingerprint) -> Restored | None:
        """The contents of the file, in a fork of `empty`; None if there is no file.

        Raises what `snapshot.restore` raises, SnapshotBroken if a shard is missing, RanksError if
        a rank is lost.
        """
        try:
            restored = snapshot.restore(self.path, empty, fingerprint)
        except FileNotFoundError:
            return None
        if model.peers is not None:
            self._listed = model.peers.restore(restored.cache, restored.facts.pop(SHARDS, None))
        return restored


class Outage:
    """Reports when saving starts to fail, and when it works again, with the message `over`."""

    def __init__(self, notify: Callable[[str], None], over: str) -> None:
        self._notify = notify
        self._over = over
        self._lasts = False

    def lasts(self, message: str) -> None:
        """Saving failed; `message` is shown if it is the first failure."""
        if not self._lasts:
            self._notify(message)
        self._lasts = True

    def ends(self) -> None:
        """Saving succeeded."""
        if self._lasts:
            self._notify(self._over)
        self._lasts = False
