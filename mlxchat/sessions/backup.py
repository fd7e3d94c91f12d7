"""Whether the database of sessions is damaged, and its copy, which then takes its place.

The copy is renewed daily. A suspect file, as after a power cut, is checked when it is opened.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from shutil import copyfile

from mlxchat.files import (
    exclusive,
    force_to_disk,
    open_file,
    remove_unfinished,
    replacing,
    sync_directory,
)

EVERY_S = 24 * 3600
# So much is copied at a time, with pauses for others.
STEP_PAGES, PAUSE_S = 256, 0.01
# How long to wait for another process's transaction, which takes milliseconds.
BUSY_S = 10.0
# No other error is damage.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# "ok", or about an index, which is rebuilt from the tables.
_OF_AN_INDEX = re.compile(r"^ok$|FTS5|(in|from) index ")
# What SQLite keeps next to a database: changes that are not in it yet.
_LOGS = ("wal", "journal")


def connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    # A damaged text is noticed by its checksum.
    connection.text_factory = partial(bytes.decode, errors="replace")
    return connection


def is_damage(error: Exception) -> bool:
    """Whether the file, or only an index in it, is damaged."""
    # Python cannot decode SQLite's message about a name that is no longer text.
    is_undecodable = isinstance(error, UnicodeDecodeError)
    return is_undecodable or getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def is_suspect(database: Path) -> bool:
    """Whether the file may be damaged: not closed by the last process, or with a bad copy."""
    logs = (Path(f"{database}-{name}") for name in _LOGS)
    return _mark(database).exists() or any(log.exists() and log.stat().st_size > 0 for log in logs)


def _mark(database: Path) -> Path:
    """Exists if the database is to be checked."""
    return Path(f"{database}.suspect")


def check_suspect(connection: sqlite3.Connection, database: Path) -> None:
    """Raises sqlite3.DatabaseError if the file, or its copy, is damaged; it is suspect then."""
    try:
        _check(connection, "quick_check")
    except sqlite3.DatabaseError:
        with suppress(OSError):
            _mark(database).touch(0o600)
        raise
    _mark(database).unlink(missing_ok=True)


def _check(connection: sqlite3.Connection, pragma: str) -> None:
    """Raises sqlite3.DatabaseError naming the first problem, if there is one."""
    found = (text for (text,) in connection.execute(f"PRAGMA {pragma}"))
    problem = next((text for text in found if not _OF_AN_INDEX.search(text)), None)
    if problem is not None:
        error = sqlite3.DatabaseError(problem)
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def is_rebuilt(connection: sqlite3.Connection) -> bool:
    """Rebuild the indexes; False if more is damaged. No other process writes meanwhile."""
    try:
        connection.execute("BEGIN EXCLUSIVE")
        _check(connection, "integrity_check")
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise
        return False
    from mlxchat.sessions.records import rebuild_indexes

    rebuild_indexes(connection)
    connection.execute("COMMIT")
    return True


def replace(database: Path, problem: str, *, restores: bool) -> str:
    """Set aside the file with a `problem`, and put its backup, if that is sound, in its place, or
    let a new database begin; return what to report. Raises OSError, sqlite3.Error."""
    aside = Path(f"{database}.aside-{datetime.now():%Y-%m-%d-%H%M%S}")
    aside.mkdir(mode=0o700)
    found, copy = f"{database} {problem}", path_of(database)
    if database.exists():
        found += f" and is now in {aside.name}"
    is_restored = restores and _is_sound_copy(copy)
    logs = [Path(f"{database}-{name}") for name in _LOGS]
    # Replies refer to turns that another turn may replace, and states too.
    replies = database.parent.glob("[0-9]*.reply")
    for path in (*logs, *replies, database, *([] if is_restored else [copy])):
        # SQLite would delete the log of a database that is gone.
        with suppress(FileNotFoundError):
            path.replace(aside / path.name)
    states = database.parent.glob("[0-9]*.safetensors")
    for path in (*states, Path(f"{database}-shm"), _mark(database)):
        path.unlink(missing_ok=True)
    if is_restored:
        with replacing(database) as new:
            copyfile(copy, new)
        made = datetime.fromtimestamp(copy.stat().st_mtime)
        found += f"; its backup of {made:%Y-%m-%d %H:%M} replaces it, without anything later"
    else:
        found += "; no backup replaces it: the list of sessions starts empty"
    sync_directory(database.parent)
    return found


def _is_sound_copy(copy: Path) -> bool:
    if not copy.exists() or copy.stat().st_size <= 1:
        return False
    try:
        with closing(connected(copy)) as connection:
            _check(connection, "integrity_check")
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return False
    return True


# The backup


def path_of(database: Path) -> Path:
    return Path(f"{database}.backup")


def start_if_due(connection: sqlite3.Connection, database: Path) -> None:
    """Renew the backup in the background if it is a day old, or the first session is."""
    query = "SELECT MIN(json_extract(value, '$.created')) FROM sessions WHERE json_valid(value)"
    if path_of(database).exists():
        begun_s = path_of(database).stat().st_mtime
    else:
        (begun_s,) = connection.execute(query).fetchone()
    if begun_s is not None and begun_s < time.time() - EVERY_S:
        threading.Thread(target=_renew, args=(database,), daemon=True).start()


def _renew(database: Path) -> None:
    # The older one stays. The next chat tries again, and checks a database whose copy is damaged.
    with suppress(OSError, sqlite3.Error), _alone(database):
        back_up(database)


def back_up(database: Path) -> None:
    """Renew the backup, if the new one is sound; blocks nothing. Raises OSError, sqlite3.Error."""
    copy = path_of(database)
    remove_unfinished(copy)
    with replacing(copy) as new:
        with closing(connected(database)) as source, closing(connected(new)) as target:
            target.execute("PRAGMA synchronous = OFF")
            if source.execute("PRAGMA journal_mode").fetchone() == ("wal",):
                # One state of it: else, each change would begin the copy again.
                source.execute("BEGIN")
                source.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            source.backup(target, pages=STEP_PAGES, progress=lambda *_: time.sleep(PAUSE_S))
            target.execute("PRAGMA journal_mode = DELETE")
        # A destroyed page is copied without an error.
        with closing(connected(new)) as target:
            check_suspect(target, database)
        with new.open("rb") as file:
            force_to_disk(file.fileno())
    sync_directory(copy.parent)


@contextmanager
def renewed(database: Path) -> Iterator[None]:
    """Run a body that deletes sessions; no backup keeps them. Raises OSError, sqlite3.Error."""
    with _alone(database):
        had_one = path_of(database).exists()
        path_of(database).unlink(missing_ok=True)
        try:
            yield
        finally:
            if had_one:
                back_up(database)


@contextmanager
def _alone(database: Path) -> Iterator[None]:
    """Run the body while no other process makes a backup. Raises OSError."""
    lock = Path(f"{path_of(database)}.lock")
    os.close(open_file(lock, os.O_RDWR | os.O_CREAT))
    with exclusive(lock):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
