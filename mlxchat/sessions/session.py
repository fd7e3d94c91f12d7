"""A session: a chat saved as it goes, open in one process at a time.

A name belongs to the process that opened it, even before its first turn makes a row of it.
`journal` writes it. `listing` deals with all sessions together.
"""

from __future__ import annotations

import errno
import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Self

from mlxchat.errors import SessionError
from mlxchat.files import Lock, make_private_directory, remove_unfinished
from mlxchat.sessions import backup, records
from mlxchat.sessions.database import LOCKS, Database, names_by_use, session_errors
from mlxchat.sessions.journal import Journal
from mlxchat.sessions.records import SessionRecord
from mlxchat.sessions.reply_file import reply_path

# On such a disk, a chat continues unsaved.
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


class Session:
    """A saved chat, its name locked against other processes until `close`.

    Made by `open` and `new`. A new session has no row until its journal records a turn. If `new`
    chose the name and it is taken by then, the name changes. A disk that cannot be written cannot
    lock either: then the session is locked before it is written.
    """

    def __init__(self, name: str, database: Database, *, chosen: bool = True) -> None:
        self.name = name
        self._database = database
        self._chosen = chosen
        self._id: int | None = None
        self._is_backed_up = False
        self._record: SessionRecord | None = None
        self._lock: Lock | None = None
        self.journal = Journal(database, self._begin)

    @classmethod
    def open(cls, name: str, create: bool = False) -> Self:
        """Open a session to continue it; with `create`, start one if it does not exist.

        Raises SessionError: not found, invalid name, open elsewhere, damaged.
        """
        records.check_name(name)
        session = cls(name, Database())
        look_up = find if create else existing
        try:
            record = look_up(session._database, name)
            session._lock = _lock(session._database, name)
            # Another process may have changed it before it was locked.
            record = look_up(session._database, name if record is None else record.name)
            if record is not None:
                session._reopen(record)
        except BaseException:
            session.close()
            raise
        return session

    @classmethod
    def new(cls) -> Self:
        """Start a session named after the local time. It can begin whatever is wrong with the
        disk."""
        database = Database()
        for path in database.directory.glob(LOCKS):
            # Of a process that was killed.
            with suppress(OSError, SessionError):
                Lock(path, "").remove()
        session = cls(next(_names()), database, chosen=False)
        with suppress(OSError):
            session._choose_name()
        return session

    @property
    def snapshot_path(self) -> Path | None:
        """The file for the state of its cache; None before the first turn."""
        return None if self._id is None else snapshot_path(self._database, self._id)

    def rename(self, name: str) -> None:
        """Rename it while open. Raises SessionError, and keeps the old name."""
        records.check_name(name)
        is_same = records.folded(name) == records.folded(self.name)
        lock = self._lock if is_same else _lock(self._database, name)
        try:
            self._check_free(name)
            if self._id is not None:
                with session_errors("rename the session"):
                    self._database.write(lambda connection: self._rename(connection, name))
        except BaseException:
            if not is_same:
                _remove(lock)
            raise
        if not is_same:
            _remove(self._lock)
        self._lock = lock
        self._sign()
        self.name, self._chosen = name, True

    def delete(self) -> None:
        """Delete it permanently. Raises SessionError."""
        assert self._id is not None
        id_ = self._id
        with session_errors(f"remove session {self.name!r}"):
            snapshot_path(self._database, id_).unlink(missing_ok=True)
            reply_path(self._database.directory, id_).unlink(missing_ok=True)
            self._database.write(lambda connection: records.delete_session(connection, id_))

    def close(self) -> None:
        """Let others open it. Everything recorded is already on the disk."""
        _remove(self._lock)
        self._lock = None
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reopen(self, record: SessionRecord) -> None:
        self.name, self._id, self._record = record.name, record.id, record
        self._sign()
        with session_errors(f"read session {self.name!r}"):
            self.journal = Journal(self._database, self._begin, record)
        remove_unfinished(snapshot_path(self._database, record.id))

    def _choose_name(self) -> None:
        """Raises OSError if nothing can be locked."""
        for name in _names():
            # Another one may have begun in the same second.
            with suppress(SessionError):
                lock = _taken(self._database, name)
                _remove(self._lock)
                self.name, self._lock = name, lock
                return

    def _sign(self) -> None:
        """Say which process has it open, and so needs the database as it is."""
        if self._lock is not None and self._id is not None:
            self._lock.sign()

    def _check_free(self, name: str) -> None:
        found = find(self._database, name)
        if found is not None and found.id != self._id:
            raise records.already_exists(found.name)

    def _rename(self, connection: sqlite3.Connection, name: str) -> None:
        assert self._id is not None
        record = records.session_with(connection, self._id)
        if record is None:
            raise SessionError("the session no longer exists")
        records.update_session(connection, replace(record, name=name))

    def _begin(self, connection: sqlite3.Connection, begun: int | None) -> int:
        """Insert the session, unless it has `begun`, and lock it; return its id. Raises OSError,
        SessionError; can be called again if the transaction fails."""
        if not self._is_backed_up:
            self._is_backed_up = True
            backup.start_if_due(connection, self._database.path)
        if self._lock is None:
            # The disk could not be written when it was opened.
            lock = _taken(self._database, self.name)
            if begun is not None and records.session_with(connection, begun) != self._record:
                lock.remove()
                raise SessionError("another process has changed it")
            self._lock = lock
        if begun is None and (
            self._id is None or records.session_with(connection, self._id) is None
        ):
            self._id = self._inserted(connection)
        self._sign()
        assert self._id is not None
        return self._id

    def _inserted(self, connection: sqlite3.Connection) -> int:
        while True:
            record = SessionRecord(self.name, created=records.now())
            try:
                id_ = records.insert_session(connection, record)
            except sqlite3.IntegrityError:
                if self._chosen:
                    message = f"another process has started session {self.name!r}"
                    raise SessionError(message) from None
                self._choose_name()
                continue
            # Of another database.
            snapshot_path(self._database, id_).unlink(missing_ok=True)
            # The user has seen the name: it changed only if it was taken.
            self._chosen = True
            return id_


def find(database: Database, name: str) -> SessionRecord | None:
    """The session of that name, whatever its case. Raises SessionError."""
    if not database.exists:
        return None
    with session_errors("read the sessions"):
        return database.read(lambda connection: records.session_named(connection, name))


def existing(database: Database, name: str) -> SessionRecord:
    """Raises SessionError for an invalid name, and for a missing session."""
    records.check_name(name)
    found = find(database, name)
    if found is None:
        raise records.not_found(name, names_by_use())
    return found


def records_by_use(database: Database) -> list[SessionRecord]:
    """All sessions, most recently used first. Raises SessionError."""
    if not database.exists:
        return []
    with session_errors("list the sessions"):
        return database.read(records.sessions_by_use)


def lock_path(database: Database, name: str) -> Path:
    digest = hashlib.sha256(records.folded(name).encode()).hexdigest()[:16]
    return database.directory / LOCKS.replace("*", digest)


def snapshot_path(database: Database, id_: int) -> Path:
    return database.directory / f"{id_}.safetensors"


def is_snapshot(path: Path) -> bool:
    return path.suffix == ".safetensors" and path.stem.isdecimal()


def _lock(database: Database, name: str) -> Lock | None:
    """The lock; None on a disk that cannot be written, and hence not be saved to either. Raises
    SessionError."""
    with session_errors(f"open session {name!r}"):
        try:
            return _taken(database, name)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            return None


def _taken(database: Database, name: str) -> Lock:
    """The lock of a name. Raises SessionError if another process has it, OSError."""
    make_private_directory(database.directory)
    return Lock(lock_path(database, name), f"session {name!r}", signed=False)


def _remove(lock: Lock | None) -> None:
    if lock is not None:
        lock.remove()


def _names() -> Iterator[str]:
    """Endless names made from the local time."""
    name = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    yield name
    for n in count(2):
        yield f"{name}-{n}"
