"""Opens the database of sessions, which several processes share, and runs transactions in it.

`records` says what is in it, `backup` replaces it if damaged. SQLite minds its write-ahead log.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import TypeVar

from mlxchat import paths, platform
from mlxchat.errors import SessionError
from mlxchat.files import exclusive, holder, make_private_directory, open_file, reported_as
from mlxchat.sessions import backup

NAME = "sessions.db"
# A file for each name that a process has open.
LOCKS = "name-*.lock"
FORMAT = 4
DAMAGED, EARLIER = "was damaged", "had an earlier format"
# What SQLite reports if a file or its directory cannot be written.
_NOT_WRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)

session_errors = partial(reported_as, SessionError)
T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


class UnusableError(Exception):
    """The database is to be replaced, because of what the message says of it."""


class Database(AbstractContextManager["Database"]):
    """The database in the directory of sessions, opened when first used. For one thread.

    If it `mends`, a damaged database, or one of an earlier format, is set aside; the command that
    notices ends with a SessionError that says so.
    """

    def __init__(self, *, mends: bool = True) -> None:
        self.directory = paths.sessions_dir()
        self.path = self.directory / NAME
        self._mends = mends
        self._connection: sqlite3.Connection | None = None
        # The file that was opened, or that could not be.
        self._file: os.stat_result | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; any method opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def read(self, work: Work[T], missing: T) -> T:
        """Run a transaction that changes nothing, even on a disk that cannot be written; return
        what is `missing` if there is no database.

        Raises OSError if the database cannot be read, SessionError if it is damaged.
        """
        known = (self.path, backup.path_of(self.path))
        if not self.directory.is_file() and not any(map(os.path.lexists, known)):
            return missing
        return self._mending(lambda: self._read(work))

    def write(self, work: Work[T]) -> T:
        """Run a transaction that survives a power cut; if `work` raises, none. Raises as `read`."""
        return self._mending(lambda: self._write(work))

    def erase_deleted(self) -> None:
        """Overwrite what the index of words and the log still have of what was deleted. If the disk
        is full, or another process is reading, a later deletion does it."""
        with suppress(OSError, sqlite3.Error, SessionError):
            self.write(lambda c: c.execute("INSERT INTO words (words) VALUES ('optimize')"))
            self._current().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _read(self, work: Work[T]) -> T:
        try:
            connection = self._current()
        except (OSError, sqlite3.OperationalError) as error:
            if not _is_read_only(error):
                raise
            with _read_only(self.path) as connection:
                return work(connection)
        try:
            connection.execute("BEGIN")
            return work(connection)
        finally:
            connection.rollback()

    def _write(self, work: Work[T]) -> T:
        connection = self._current()
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
            # Only one process at a time may open, create or replace the database.
            with exclusive(self.directory):
                self._file = _status(self.path)
                # SQLite takes a single byte for an empty database, too.
                is_empty = self._file is None or self._file.st_size <= 1
                if is_empty and backup.path_of(self.path).exists():
                    raise UnusableError("was missing or empty")
                is_suspect = backup.is_suspect(self.path) and self._chat() is None
                connection = connect(self.path)
                self._file = _status(self.path)
            if is_suspect:
                backup.check_suspect(connection, self.path)
            self._connection = connection
        return self._connection

    def _chat(self) -> int | None:
        """A process with a chat that is saved in the database."""
        return next(filter(None, map(holder, self.directory.glob(LOCKS))), None)

    def _is_replaced(self) -> bool:
        found = _status(self.path)
        return found is None or self._file is None or not os.path.samestat(self._file, found)

    def _mending(self, run: Callable[[], T]) -> T:
        """Run it, and once more if only an index was damaged."""
        is_mended = False
        while True:
            try:
                return run()
            except (sqlite3.Error, UnicodeDecodeError, UnusableError) as error:
                problem = str(error) if isinstance(error, UnusableError) else DAMAGED
                if is_mended or (problem == DAMAGED and not backup.is_damage(error)):
                    raise OSError(f"{self.path}: {error}") from error
                self._mend(problem)
                is_mended = True

    def _mend(self, problem: str) -> None:
        """Rebuild the indexes. If more is damaged, set the file aside, unless a chat is saved in
        it, and raise SessionError with what to report."""
        self.close()
        if not self._mends:
            raise SessionError(f"{self.path} {problem}")
        try:
            with exclusive(self.directory), ExitStack() as stack:
                if self._file is not None and self._is_replaced():
                    raise SessionError(f"{self.path} was set aside by another process: try again")
                if problem == DAMAGED:
                    connection = stack.enter_context(closing(backup.connected(self.path)))
                    if backup.is_rebuilt(connection):
                        return
                process = self._chat()
                if process is not None:
                    chat = f"the chat in process {process}"
                    raise SessionError(f"{self.path} {problem}: end {chat}, then try again")
                found = backup.replace(self.path, problem, restores=problem != EARLIER)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            message = f"{self.path} {problem}, but could not be set aside: {reason}"
            raise SessionError(message) from error
        raise SessionError(f"{found}: try again")


def names_by_use() -> list[str]:
    """Names of all sessions, most recently used first. Sets nothing aside. Raises SessionError."""
    query = (
        "SELECT json_extract(value, '$.name') FROM sessions WHERE json_valid(value) "
        "ORDER BY json_extract(value, '$.updated') DESC, id DESC"
    )
    with Database(mends=False) as database, session_errors("list the sessions"):
        return [name for (name,) in database.read(lambda c: c.execute(query).fetchall(), [])]


def connect(path: Path) -> sqlite3.Connection:
    """Open the database to read and write; create it if it is missing.

    Private to its owner, as are SQLite's other files. Raises OSError, sqlite3.Error,
    UnusableError, and SessionError for a database of a newer version.
    """
    if not os.path.lexists(path):
        os.close(open_file(path, os.O_RDWR | os.O_CREAT))
    # Opened and closed here, it would lose the locks of this process's other connections.
    elif not os.access(path, os.W_OK):
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))
    elif path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    connection = backup.connected(path)
    try:
        is_new = _is_new(connection, path)
        # The shared memory of a write-ahead log does not reach other machines.
        mode = "TRUNCATE" if platform.on_network_disk(path) else "WAL"
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("PRAGMA synchronous = FULL")
        # On macOS only this forces data out of the drive's own cache.
        connection.execute("PRAGMA fullfsync = ON")
        # What is deleted is overwritten with zeros.
        connection.execute("PRAGMA secure_delete = ON")
        if is_new:
            _create(connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database on a disk that cannot be written. Raises what `connect` raises."""
    with tempfile.TemporaryDirectory(prefix="mlxchat-") as scratch:
        # SQLite reads a log only if it can write next to it.
        copy = Path(scratch) / path.name
        copyfile(path, copy)
        with suppress(FileNotFoundError):
            copyfile(f"{path}-wal", f"{copy}-wal")
        with closing(backup.connected(copy)) as connection:
            _is_new(connection, path)
            yield connection


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether it has no tables yet. Raises UnusableError, and SessionError for a newer version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > FORMAT:
        raise SessionError(
            f"{path} was written by a newer mlxchat, in version {version} of the format; "
            f"this mlxchat reads version {FORMAT}"
        )
    is_new = version == 0 and not connection.execute("SELECT name FROM sqlite_master").fetchall()
    if version < FORMAT and not is_new:
        raise UnusableError(EARLIER)
    return is_new


def _create(connection: sqlite3.Connection) -> None:
    """Another process may do the same: not every network disk can lock a directory."""
    from mlxchat.sessions.records import SCHEMA

    connection.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _is_read_only(error: OSError | sqlite3.OperationalError) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        code = getattr(error, "sqlite_errorcode", 0)
        # The last one if the disk is full.
        return code & 0xFF in _NOT_WRITABLE or code == sqlite3.SQLITE_IOERR_SHMSIZE
    return isinstance(error, PermissionError) or error.errno == errno.EROFS
