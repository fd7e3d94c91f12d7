"""A session: a chat saved as it goes, in a separate directory, open in one process at a time.

`journal` defines the transcript and `snapshot` the snapshot. `session_names` has the directory of a
session; `session_list` deals with all sessions together.
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
    already_exists,
    as_saved,
    check_name,
    directory_of,
    not_found,
    path_of,
    session_errors,
)

SNAPSHOT = "snapshot.safetensors"
LOCK = "lock"
FILES = (TRANSCRIPT, unfinished_reply.NAME, SNAPSHOT, LOCK)


class Session:
    """A saved chat, locked against other processes from its first turn until `close`.

    Made by `open` and `new`. A new session leaves nothing on the disk until its journal records a
    turn. If `new` chose the name and it is taken by then, the name changes.
    """

    def __init__(self, name: str, *, chosen: bool = True) -> None:
        self.name = name
        self._chosen = chosen
        self._lock: Lock | None = None
        self.journal = Journal.create(self.directory / TRANSCRIPT, prepare=self._prepare)

    @classmethod
    def open(cls, name: str, create: bool = False) -> Self:
        """Open a session to continue it; with `create`, start one if it does not exist.

        Raises SessionError: not found, invalid name, open elsewhere, damaged.
        """
        check_name(name)
        session = cls(as_saved(name))
        if _exists(session.directory / TRANSCRIPT):
            session._reopen()
        elif not create:
            raise not_found(name)
        return session

    @classmethod
    def new(cls) -> Self:
        """Start a session named after the local time."""
        return cls(next(name for name in _names() if not _exists(path_of(name))), chosen=False)

    @property
    def directory(self) -> Path:
        return path_of(self.name)

    @property
    def snapshot_path(self) -> Path:
        return self.directory / SNAPSHOT

    def rename(self, name: str) -> None:
        """Rename it while open. Raises SessionError, and keeps the old name."""
        check_name(name)
        if self._lock is None:
            _check_free(name)
        else:
            move(self.name, name)
        self.name, self._chosen = name, True
        self.journal.move(self.directory / TRANSCRIPT)

    def close(self) -> None:
        """Let others open it. Everything recorded is already on the disk."""
        self.journal.close()
        if self._lock is not None:
            self._remove_if_empty()
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reopen(self) -> None:
        directory = directory_of(self.name)
        with session_errors(f"open session {self.name!r}"):
            self._lock = Lock(directory / LOCK, f"session {self.name!r}")
        try:
            self.journal = Journal.open(directory / TRANSCRIPT)
        except BaseException:
            self.close()
            raise
        remove_unfinished(directory / SNAPSHOT)

    def _prepare(self) -> Path:
        """Create the directory and take the lock; return the transcript's path. Raises OSError,
        SessionError; can be called again to finish."""
        if self._lock is None:
            make_private_directory(paths.sessions_dir())
            self._make_directory()
            lock = Lock(directory_of(self.name) / LOCK, f"session {self.name!r}")
            if _exists(self.directory / TRANSCRIPT):
                lock.release()
                raise SessionError(f"another process has started session {self.name!r}")
            self._lock = lock
        return self.directory / TRANSCRIPT

    def _make_directory(self) -> None:
        # The user has seen the name: change it only if it is taken.
        for name in chain([self.name], () if self._chosen else _names()):
            with suppress(FileExistsError):
                path_of(name).mkdir(mode=0o700)
                self.name, self._chosen = name, True
                sync_directory(paths.sessions_dir())
                return

    def _remove_if_empty(self) -> None:
        """If nothing was recorded, remove the directory, which only contains a lock."""
        if not _exists(self.directory / TRANSCRIPT):
            with suppress(OSError):
                (self.directory / LOCK).unlink()
                self.directory.rmdir()


def move(old: str, new: str) -> None:
    """Rename a session that this process has locked. Raises SessionError."""
    check_name(new)
    directory = directory_of(old)
    _check_free(new, directory.name)
    with session_errors(f"rename session {old!r}"):
        directory.rename(path_of(new))
        sync_directory(paths.sessions_dir())


def _names() -> Iterator[str]:
    """Endless names made from the local time."""
    name = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    yield name
    for n in count(2):
        yield f"{name}-{n}"


def _check_free(name: str, own: str | None = None) -> None:
    """Raises SessionError if a session other than `own` has the name, in upper or lower case."""
    found = as_saved(name)
    if found != own and _exists(path_of(found)):
        raise already_exists(found)


def _exists(path: Path) -> bool:
    return os.path.lexists(path)
