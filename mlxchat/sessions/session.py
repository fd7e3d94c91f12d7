"""A session: a chat saved as it goes, open in one process at a time.

A name belongs to the process that opened it, even before its first turn makes a row of it.
`journal` writes it. `listing` deals with all sessions together.
"""

from __future__ import annotations

import errno
import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Self

from mlxchat.errors import SessionError
from mlxchat.files import Lock, make_private_directory, remove_unfinished
from mlxchat.sessions import backup, records
from mlxchat.sessions.database import Database, names_by_use, session_errors
from mlxchat.sessions.journal import Journal
from mlxchat.sessions.records import SessionRecord

# On such a disk, a chat continues unsaved.
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


class Session:
    """A saved chat, locked against other processes until `close`.

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
        self._name_lock: Lock | None = None
        self.journal = Journal(database, self._begin)

    @classmethod
    def open(cls, name: str, create: bool = False) -> Self:
        """Open a session to continue it; with `create`, start one if it does not exist.

        Raises SessionError: not found, invalid name, open elsewhere, damaged.
        """
        records.check_name(name)
        database = Database()
        try:
            record = find(database, name) if create else existing(database, name)
            session = cls(name if record is None else record.name, database)
        except BaseException:
            database.close()
            raise
        try:
            if record is None:
                session._name_lock = _lock_name(database, name)
                # Another process may have saved and closed it before it was locked.
                record = find(database, name)
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
        for path in database.directory.glob("name-*.lock"):
            # Of a process that was killed.
            with suppress(OSError, SessionError):
                Lock(path, "").remove()
        for name in _names():
            session = cls(name, database, chosen=False)
            with suppress(OSError):
                make_private_directory(database.directory)
                try:
                    session._name_lock = Lock(_name_path(database, name), f"session {name!r}")
                except SessionError:
                    # Another one has begun in the same second.
                    continue
            return session
        raise AssertionError

    @property
    def snapshot_path(self) -> Path | None:
        """The file for the state of its cache; None before the first turn."""
        return None if self._id is None else snapshot_path(self._database, self._id)

    def rename(self, name: str) -> None:
        """Rename it while open. Raises SessionError, and keeps the old name."""
        records.check_name(name)
        lock = None
        if self._id is not None:
            rename(self._database, self._id, self.name, name)
        elif records.folded(name) != records.folded(self.name) or self._name_lock is None:
            lock = _lock_name(self._database, name)
            found = find(self._database, name)
            if found is not None:
                _remove(lock)
                raise records.already_exists(found.name)
        if records.folded(name) != records.folded(self.name) or lock is not None:
            _remove(self._name_lock)
            self._name_lock = lock
        self.name, self._chosen = name, True

    def close(self) -> None:
        """Let others open it. Everything recorded is already on the disk."""
        _remove(self._lock)
        _remove(self._name_lock)
        self._lock = self._name_lock = None
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reopen(self, record: SessionRecord) -> None:
        self._lock = _lock(lock_path(self._database, record.id), self.name)
        self._id = record.id
        try:
            with session_errors(f"read session {self.name!r}"):
                # It may have changed before it was locked.
                current = self._database.read(lambda c: records.session_with(c, record.id))
                self._record = current or record
                self.journal = Journal(self._database, self._begin, self._record)
        except BaseException:
            self.close()
            raise
        remove_unfinished(snapshot_path(self._database, record.id))

    def _begin(self, connection: sqlite3.Connection, begun: int | None) -> int:
        """Insert the session, unless it has `begun`, and lock it; return its id. Raises OSError,
        SessionError; can be called again if the transaction fails."""
        if not self._is_backed_up:
            self._is_backed_up = True
            backup.start_if_due(connection, self._database.path)
        if begun is not None:
            if self._lock is None:
                self._lock_late(connection, begun)
            return begun
        if self._lock is not None:
            if self._id is not None and records.session_with(connection, self._id) is not None:
                return self._id
            self._lock.remove()
            self._lock = None
        id_ = self._insert(connection)
        # Nobody else knows the id before the transaction ends.
        self._lock = Lock(lock_path(self._database, id_), f"session {self.name!r}")
        self._id = id_
        return id_

    def _lock_late(self, connection: sqlite3.Connection, id_: int) -> None:
        """Lock a session on a disk that could not be written when it was opened."""
        lock = Lock(lock_path(self._database, id_), f"session {self.name!r}")
        if records.session_with(connection, id_) != self._record:
            lock.remove()
            raise SessionError("another process has changed it")
        self._lock = lock

    def _insert(self, connection: sqlite3.Connection) -> int:
        for name in [self.name] if self._chosen else chain([self.name], _names()):
            try:
                id_ = records.insert_session(connection, SessionRecord(name, created=records.now()))
            except sqlite3.IntegrityError:
                continue
            # The user has seen the name: it changed only if it was taken.
            self.name, self._chosen = name, True
            return id_
        taken = records.session_named(connection, self.name)
        assert taken is not None
        with suppress(OSError):
            # Says which process has it open, if one has.
            Lock(lock_path(self._database, taken.id), f"session {self.name!r}").release()
        raise SessionError(f"another process has started session {self.name!r}")


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


def rename(database: Database, id_: int, old: str, name: str) -> None:
    """Rename a session that this process has locked. Raises SessionError."""
    records.check_name(name)

    def change(connection: sqlite3.Connection) -> None:
        record = records.session_with(connection, id_)
        if record is None:
            raise SessionError("the session no longer exists")
        taken = records.session_named(connection, name)
        if taken is not None and taken.id != id_:
            raise records.already_exists(taken.name)
        records.update_session(connection, replace(record, name=name))

    is_same = records.folded(old) == records.folded(name)
    with session_errors("rename the session"), nullcontext() if is_same else named(database, name):
        database.write(change)


@contextmanager
def named(database: Database, name: str) -> Iterator[None]:
    """Run the body while no other process has opened a new session of that name."""
    lock = _lock_name(database, name)
    try:
        yield
    finally:
        _remove(lock)


@contextmanager
def locked(database: Database, record: SessionRecord) -> Iterator[None]:
    """Run the body while no other process has the session open or can open it."""
    with session_errors(f"lock session {record.name!r}"):
        lock = Lock(lock_path(database, record.id), f"session {record.name!r}")
    try:
        yield
    finally:
        lock.remove()


def lock_path(database: Database, id_: int) -> Path:
    return database.directory / f"{id_}.lock"


def snapshot_path(database: Database, id_: int) -> Path:
    return database.directory / f"{id_}.safetensors"


def _lock_name(database: Database, name: str) -> Lock | None:
    """As `_lock`, of a name that no session has yet."""
    return _lock(_name_path(database, name), name)


def _name_path(database: Database, name: str) -> Path:
    digest = hashlib.sha256(records.folded(name).encode()).hexdigest()[:16]
    return database.directory / f"name-{digest}.lock"


def _lock(path: Path, name: str) -> Lock | None:
    """The lock; None on a disk that cannot be written, and hence not be saved to either. Raises
    SessionError."""
    with session_errors(f"open session {name!r}"):
        try:
            make_private_directory(path.parent)
            return Lock(path, f"session {name!r}")
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            return None


def _remove(lock: Lock | None) -> None:
    if lock is not None:
        lock.remove()


def _names() -> Iterator[str]:
    """Endless names made from the local time."""
    name = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    yield name
    for n in count(2):
        yield f"{name}-{n}"
