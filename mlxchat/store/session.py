"""A session: a chat that is saved as it goes, in a directory of its own, open in one process.

What is in a transcript is `journal`'s business, and what is in a snapshot `snapshot`'s. Where a
session lies is `session_names`'s, all sessions together are `session_list`'s.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Self

from mlxchat import paths
from mlxchat.errors import SessionError
from mlxchat.files import Lock, make_private_directory, remove_unfinished, sync_directory
from mlxchat.store import unfinished_reply
from mlxchat.store.journal import Journal
from mlxchat.store.session_names import (
    TRANSCRIPT,
    as_saved,
    check_name,
    directory_of,
    path_of,
    plainly,
)

SNAPSHOT = "snapshot.safetensors"
LOCK = "lock"
FILES = (TRANSCRIPT, unfinished_reply.NAME, SNAPSHOT, LOCK)


class Session:
    """A chat as it is saved, locked against other processes from its first turn until `close`.

    Made by `open` and `new`. A new one leaves nothing on the disk before its journal records a
    turn; its name can become another one then, if `new` has chosen it and it is taken by now.
    """

    def __init__(self, name: str, *, chosen: bool = True) -> None:
        self.name = name
        self._chosen = chosen
        self._lock: Lock | None = None
        self.journal = Journal.create(self.directory / TRANSCRIPT, prepare=self._prepare)

    @classmethod
    def open(cls, name: str, create: bool = False) -> Self:
        """Go on with a session, or begin one of that name if there is none and `create`.

        Raises SessionError: no such session, no such name, open elsewhere, damaged.
        """
        check_name(name)
        session = cls(as_saved(name))
        if _is_there(session.directory / TRANSCRIPT):
            session._reopen()
        elif not create:
            raise SessionError(f"there is no session {name!r}")
        return session

    @classmethod
    def new(cls) -> Self:
        """Begin a session that is named after the local time."""
        return cls(next(name for name in _names() if not _is_there(path_of(name))), chosen=False)

    @property
    def directory(self) -> Path:
        return path_of(self.name)

    @property
    def snapshot_path(self) -> Path:
        return self.directory / SNAPSHOT

    def rename(self, name: str) -> None:
        """Give it another name, open as it is. Raises SessionError; then it keeps the old one."""
        check_name(name)
        if self._lock is None:
            _check_free(name)
        else:
            move(self.name, name)
        self.name, self._chosen = name, True
        self.journal.move(self.directory / TRANSCRIPT)

    def close(self) -> None:
        """Let others open it. What was recorded is on the disk already."""
        self.journal.close()
        if self._lock is not None:
            self._leave_nothing_empty()
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reopen(self) -> None:
        directory = directory_of(self.name)
        with plainly(f"open session {self.name!r}"):
            self._lock = Lock(directory / LOCK, f"session {self.name!r}")
        try:
            self.journal = Journal.open(directory / TRANSCRIPT)
        except BaseException:
            self.close()
            raise
        remove_unfinished(directory / SNAPSHOT)

    def _prepare(self) -> Path:
        """Make the directory and take the lock; where the transcript is to be. Raises OSError,
        SessionError; what was done is not done again."""
        if self._lock is None:
            make_private_directory(paths.sessions_dir())
            self._make_directory()
            lock = Lock(directory_of(self.name) / LOCK, f"session {self.name!r}")
            if _is_there(self.directory / TRANSCRIPT):
                lock.release()
                raise SessionError(f"session {self.name!r} has been begun by another process")
            self._lock = lock
        return self.directory / TRANSCRIPT

    def _make_directory(self) -> None:
        # Its name has been told: another one only where this is taken.
        for name in chain([self.name], () if self._chosen else _names()):
            with suppress(FileExistsError):
                path_of(name).mkdir(mode=0o700)
                self.name, self._chosen = name, True
                sync_directory(paths.sessions_dir())
                return

    def _leave_nothing_empty(self) -> None:
        """Where nothing could be recorded, there is a lock in a directory and nothing else."""
        if not _is_there(self.directory / TRANSCRIPT):
            with suppress(OSError):
                (self.directory / LOCK).unlink()
                self.directory.rmdir()


def move(old: str, new: str) -> None:
    """Rename a session that this process has locked. Raises SessionError."""
    check_name(new)
    directory = directory_of(old)
    _check_free(new, directory.name)
    with plainly(f"rename session {old!r}"):
        directory.rename(path_of(new))
        sync_directory(paths.sessions_dir())


def _names() -> Iterator[str]:
    """Names after the local time, until one is taken."""
    name = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    yield name
    for n in count(2):
        yield f"{name}-{n}"


def _check_free(name: str, own: str | None = None) -> None:
    """Raises SessionError if another session than `own` has the name, in whatever case."""
    found = as_saved(name)
    if found != own and _is_there(path_of(found)):
        raise SessionError(f"there is a session {found!r} already: choose another name")


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)
