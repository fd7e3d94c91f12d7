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
from mlxchat.sessions.tables import (
    APPLICATION,
    COLUMNS,
    FORMAT,
    PAGE_BYTES,
    SCHEMA,
    Damaged,
)

# How long to wait for another process's transaction, which takes milliseconds.
BUSY_S = 10.0
# There will never be as many formats.
MOST_VERSIONS = 1_000
# The last is any other error in a statement. Ours have none, so the schema must be damaged.
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
# What this Python's SQLite says if it was built without full-text search.
NO_SEARCH = "no such module"


def is_damage(error: Exception) -> bool:
    """Whether the file is damaged. Python cannot decode SQLite's message about a name that is no
    longer text."""
    if isinstance(error, UnicodeDecodeError):
        return True
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in DAMAGE and NO_SEARCH not in str(error)


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
            _create(connection, fill)
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
    """Whether it has no tables yet. Raises SessionError for a database that is not ours, Damaged if
    it is ours and says otherwise."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if (application, version) == (0, 0) and not names:
        return True
    if version > MOST_VERSIONS or (application != APPLICATION and names.issuperset(COLUMNS)):
        raise Damaged("the header is not the one that was written")
    if application != APPLICATION:
        raise SessionError(f"{path} is the database of another program")
    if version > FORMAT:
        raise SessionError(
            f"{path} was written by a newer mlxchat, in version {version} of the format; "
            f"this mlxchat reads version {FORMAT}"
        )
    return False


def _create(connection: sqlite3.Connection, fill: Callable[[sqlite3.Connection], object]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        connection.execute(statement)
    fill(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")
