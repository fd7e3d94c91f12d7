"""Transactions in the database of sessions, which several processes share.

`connection` opens it, `records` says what is in it. A file that SQLite finds damaged is set aside,
and a new one begun; the write-ahead log is SQLite's own business.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from datetime import datetime
from pathlib import Path
from shutil import copyfile
from typing import Self, TypeVar

from mlxchat import paths
from mlxchat.errors import SessionError
from mlxchat.files import exclusive, holder, make_private_directory, reported_as, sync_directory
from mlxchat.sessions.connection import (
    code_of,
    connect,
    connect_to_read,
    is_damage,
    is_index_damage,
)

NAME = "sessions.db"
# What SQLite says if a file or its directory cannot be written.
_NOT_WRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
# What SQLite keeps next to a database: changes that are not in it yet, and memory that is shared.
_CHANGES, _SHARED = ("wal", "journal"), "shm"
# Files named by the id of a session.
_OF_A_SESSION = (".lock", ".reply", ".safetensors")

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


class Database:
    """The database in the directory of sessions, opened when first used. For one thread."""

    def __init__(self) -> None:
        self.directory = paths.sessions_dir()
        self._connection: sqlite3.Connection | None = None
        # The file that was opened, or that could not be.
        self._file: os.stat_result | None = None
        self._forced: bool | None = None

    @property
    def path(self) -> Path:
        return self.directory / NAME

    @property
    def exists(self) -> bool:
        """Whether there is a database, or sessions of an earlier version to make one of."""
        earlier = (path.is_dir() for path in self.directory.glob("*"))
        return os.path.lexists(self.path) or self.directory.is_file() or any(earlier)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; any method opens it again."""
        connection, self._connection = self._connection, None
        self._forced = None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def read(self, work: Work[T]) -> T:
        """Run a transaction that changes nothing, even on a disk that cannot be written.

        Raises OSError if the database cannot be read, SessionError if it is damaged.
        """
        return self._reported(lambda: self._read(work))

    def write(self, work: Work[T], *, forced: bool = True) -> T:
        """Run a transaction; return once it would survive a power cut if `forced`, otherwise once
        it would survive a kill. If `work` raises, nothing changes. Raises what `read` raises."""
        return self._reported(lambda: self._write(work, forced))

    def _read(self, work: Work[T]) -> T:
        try:
            connection = self._current()
        except (OSError, sqlite3.OperationalError) as error:
            if not _is_read_only(error):
                raise
            with connect_to_read(self.path) as connection:
                return work(connection)
        try:
            connection.execute("BEGIN")
            return work(connection)
        finally:
            connection.rollback()

    def _write(self, work: Work[T], forced: bool) -> T:
        connection = self._current()
        if forced is not self._forced:
            connection.execute(f"PRAGMA synchronous = {'FULL' if forced else 'NORMAL'}")
            self._forced = forced
        try:
            connection.execute("BEGIN IMMEDIATE")
            if self._is_replaced():
                raise OSError(f"{self.path} was replaced by another process")
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.rollback()
            raise
        return result

    def _current(self) -> sqlite3.Connection:
        """The connection to the file that has the name now."""
        if self._connection is not None and self._is_replaced():
            self.close()
        if self._connection is None:
            make_private_directory(self.directory)
            # Only one process at a time may open, create or set aside the database.
            with exclusive(self.directory):
                self._file = _status(self.path)
                self._connection = connect(self.path, self._fill)
                self._file = _status(self.path)
        return self._connection

    def _fill(self, connection: sqlite3.Connection) -> None:
        # Shell completion only reads names: it loads neither this nor numpy.
        from mlxchat.sessions.earlier import take_over

        # What another database has left must not be taken for the files of new sessions.
        last = max((id_ for id_, _ in self._session_files()), default=0)
        connection.execute("INSERT INTO sqlite_sequence VALUES ('sessions', ?)", (last,))
        take_over(connection, self.directory)

    def _session_files(self) -> Iterator[tuple[int, Path]]:
        """The files of sessions, with their ids."""
        for path in self.directory.iterdir():
            if path.stem.isdecimal() and path.suffix in _OF_A_SESSION:
                yield int(path.stem), path

    def _is_replaced(self) -> bool:
        found = _status(self.path)
        return found is None or self._file is None or not os.path.samestat(self._file, found)

    def _reported(self, run: Callable[[], T]) -> T:
        try:
            try:
                return run()
            except sqlite3.DatabaseError as error:
                if not is_index_damage(error):
                    raise
                from mlxchat.sessions.records import rebuild_indexes

                self._write(rebuild_indexes, forced=True)
                return run()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            # Python cannot decode SQLite's message about a name that is no longer text.
            if is_damage(error):
                raise self._set_aside() from error
            raise OSError(f"{self.path}: {error}") from error

    def _set_aside(self) -> SessionError:
        """Move the damaged file away, unless a chat is saved in it; return what to report."""
        self.close()
        try:
            with exclusive(self.directory):
                if self._is_replaced():
                    return SessionError(f"{self.path} was set aside by another process: try again")
                locks = (path for _, path in self._session_files() if path.suffix == ".lock")
                process = next(filter(None, map(holder, locks)), None)
                if process is not None:
                    chat = (
                        "this chat" if process == os.getpid() else f"the chat in process {process}"
                    )
                    return SessionError(f"{self.path} is damaged: end {chat}, then try again")
                return SessionError(self._moved())
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            return SessionError(f"{self.path} is damaged and could not be set aside: {reason}")

    def _moved(self) -> str:
        aside = Path(f"{self.path}.damaged-{datetime.now():%Y-%m-%d-%H%M%S}")
        if aside.exists():
            raise FileExistsError(f"{aside} exists")
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            try:
                # Nobody writes meanwhile.
                connection.execute("BEGIN EXCLUSIVE")
                if connection.execute("PRAGMA integrity_check").fetchone() == ("ok",):
                    return f"{self.path} seemed damaged, but is not: try again"
            except (sqlite3.Error, UnicodeDecodeError) as error:
                if not is_damage(error):
                    raise
            # Copied first: SQLite deletes those of a database that is gone, should this be killed.
            for suffix in _CHANGES:
                with suppress(FileNotFoundError):
                    copyfile(f"{self.path}-{suffix}", f"{aside}-{suffix}")
            self.path.replace(aside)
            for suffix in (*_CHANGES, _SHARED):
                Path(f"{self.path}-{suffix}").unlink(missing_ok=True)
        sync_directory(self.directory)
        return f"{self.path} was damaged and is now {aside.name}: try again with a new database"


def names_by_use() -> list[str]:
    """Names of all sessions, most recently used first. Raises SessionError."""
    query = "SELECT name FROM sessions ORDER BY updated DESC, id DESC"
    with Database() as database, session_errors("list the sessions"):
        if not database.exists:
            return []
        return [name for (name,) in database.read(lambda c: c.execute(query).fetchall())]


def session_errors(action: str) -> AbstractContextManager[None]:
    return reported_as(SessionError, action)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _is_read_only(error: OSError | sqlite3.OperationalError) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return code_of(error) & 0xFF in _NOT_WRITABLE
    return isinstance(error, PermissionError) or error.errno == errno.EROFS
