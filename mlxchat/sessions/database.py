"""Transactions in the database of sessions, which several processes share.

`connection` opens it, `records` says what is in it. A damaged database is repaired, never replaced
with an empty one.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Self, TypeVar

from mlxchat import paths
from mlxchat.errors import SessionError
from mlxchat.files import exclusive, make_private_directory, open_to_read, reported_as
from mlxchat.sessions.connection import connect, connect_to_read, is_damage
from mlxchat.sessions.tables import PAGE_BYTES, Damaged

NAME = "sessions.db"
# What SQLite says if a file or its directory cannot be written.
_NOT_WRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)

HEADER_BYTES = 20
# With a rollback journal, and with a write-ahead log.
WRITE_VERSIONS = (1, 2)
# How long another process's write may look like damage.
PAUSE_S = 0.1

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
        return os.path.lexists(self.path) or self.directory.exists()

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

        Raises OSError if the database cannot be read, SessionError if it was damaged.
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
            # Only one process at a time may open, create or repair the database.
            with exclusive(self.directory):
                self._finish_repair()
                self._file = _status(self.path)
                if self._is_silently_damaged():
                    raise Damaged
                self._connection = connect(self.path, self._take_over)
                self._file = _status(self.path)
        return self._connection

    def _finish_repair(self) -> None:
        """A kill may have interrupted one."""
        if os.path.lexists(f"{self.path}.repaired"):
            from mlxchat.sessions.repair import finish

            finish(self.path)

    def _is_silently_damaged(self) -> bool:
        """Whether SQLite would lose something without a word."""
        if self._has_damaged_log():
            return True
        if self._file is None or not stat.S_ISREG(self._file.st_mode):
            return False
        if self._file.st_size >= PAGE_BYTES:
            with open_to_read(self.path) as file:
                header = file.read(HEADER_BYTES)
            # With another version to write, SQLite takes the database for a read-only one.
            return header[18] not in WRITE_VERSIONS
        # A process that was killed when it created the database left an empty file.
        return self._file.st_size > 0 or any(self.directory.glob("*.safetensors"))

    def _has_damaged_log(self) -> bool:
        log = Path(f"{self.path}-wal")
        if not log.exists() or log.stat().st_size == 0:
            return False
        from mlxchat.sessions.log import is_damaged

        if not is_damaged(log):
            return False
        # What another process is writing just now may look so for a moment.
        time.sleep(PAUSE_S)
        return is_damaged(log)

    def _take_over(self, connection: sqlite3.Connection) -> None:
        # Shell completion only reads names: it loads neither this nor numpy.
        from mlxchat.sessions.earlier import take_over

        take_over(connection, self.directory)

    def _is_replaced(self) -> bool:
        found = _status(self.path)
        return found is None or self._file is None or not os.path.samestat(self._file, found)

    def _reported(self, run: Callable[[], T]) -> T:
        try:
            return run()
        except (Damaged, sqlite3.IntegrityError) as error:
            # The work deals with names that are taken; nothing else is unique in this way.
            raise self._repaired() from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if is_damage(error):
                raise self._repaired() from error
            raise OSError(f"{self.path}: {error}") from error

    def _repaired(self) -> SessionError:
        from mlxchat.sessions.repair import repair

        self.close()
        try:
            with exclusive(self.directory):
                if self._is_replaced():
                    return SessionError(f"{self.path} was repaired by another process: try again")
                report = repair(self.path)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            return SessionError(f"{self.path} is damaged and could not be repaired: {reason}")
        return SessionError(f"{self.path} was damaged and has been repaired: {report}; try again")


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
        return error.sqlite_errorcode & 0xFF in _NOT_WRITABLE
    return isinstance(error, PermissionError) or error.errno == errno.EROFS
