"""Opens and creates the database of sessions. `database` runs transactions in it."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import copyfile

from mlxchat import platform
from mlxchat.errors import SessionError
from mlxchat.files import open_file
from mlxchat.sessions.tables import APPLICATION, FORMAT, PAGE_BYTES, SCHEMA

# How long to wait for another process's transaction, which takes milliseconds.
BUSY_S = 10.0
# A damaged index is rebuilt from the tables.
INDEX_DAMAGE = (sqlite3.SQLITE_CORRUPT_VTAB, sqlite3.SQLITE_CORRUPT_INDEX)
# No other error is damage.
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_index_damage(error: sqlite3.Error) -> bool:
    return code_of(error) in INDEX_DAMAGE


def is_damage(error: Exception) -> bool:
    """Whether the file itself is damaged."""
    return code_of(error) & 0xFF in DAMAGE and code_of(error) not in INDEX_DAMAGE


def code_of(error: Exception) -> int:
    """SQLite's extended code; 0 for an error of Python's own."""
    return getattr(error, "sqlite_errorcode", 0)


def connect(path: Path, fill: Callable[[sqlite3.Connection], object]) -> sqlite3.Connection:
    """Open the database to read and write; create it if it is missing, filled by `fill`.

    Private to its owner, as are SQLite's other files. Raises OSError, sqlite3.Error, and
    SessionError for a database of a newer version or of another program.
    """
    os.close(open_file(path, os.O_RDWR | os.O_CREAT))
    connection = _connected(path)
    try:
        is_new = _is_new(connection, path)
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        # The shared memory of a write-ahead log does not reach other machines.
        mode = "TRUNCATE" if platform.on_network_disk(path) else "WAL"
        connection.execute(f"PRAGMA journal_mode = {mode}")
        # On macOS only this forces data out of the drive's own cache.
        connection.execute("PRAGMA fullfsync = ON")
        # What is deleted is overwritten with zeros.
        connection.execute("PRAGMA secure_delete = ON")
        if is_new:
            _create(connection, path, fill)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def connect_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database on a disk that cannot be written. Raises what `connect` raises."""
    log = Path(f"{path}-wal")
    if not log.exists() or log.stat().st_size == 0:
        connection = _connected(f"file:{_quoted(path)}?immutable=1")
        with closing(connection):
            _is_new(connection, path)
            yield connection
        return
    # SQLite reads a log only if it can write next to it.
    with tempfile.TemporaryDirectory(prefix="mlxchat-") as scratch:
        copy = Path(scratch) / path.name
        for suffix in ("", "-wal"):
            copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        with closing(_connected(copy)) as connection:
            _is_new(connection, path)
            yield connection


def _connected(path: Path | str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=True
    )
    # A damaged text is noticed by its checksum.
    connection.text_factory = lambda data: data.decode(errors="replace")
    return connection


def _quoted(path: Path) -> str:
    return str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether it has no tables yet. Raises SessionError for a database that is not ours."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
    if (application, version) == (0, 0) and not tables:
        return True
    if application != APPLICATION:
        raise SessionError(f"{path} is the database of another program")
    if version > FORMAT:
        raise SessionError(
            f"{path} was written by a newer mlxchat, in version {version} of the format; "
            f"this mlxchat reads version {FORMAT}"
        )
    return False


def _create(
    connection: sqlite3.Connection, path: Path, fill: Callable[[sqlite3.Connection], object]
) -> None:
    connection.execute("BEGIN IMMEDIATE")
    if not _is_new(connection, path):
        # Another process was faster: not every network disk can lock a directory.
        connection.execute("ROLLBACK")
        return
    for statement in SCHEMA:
        connection.execute(statement)
    fill(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")
