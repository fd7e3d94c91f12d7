"""Replaces a damaged database of sessions by one with every row that can still be read.

The damaged file is kept. A lost turn stays in its session's list of turns, so that it is named
whenever the session is read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from mlxchat.files import sync_directory
from mlxchat.sessions.connection import connect
from mlxchat.sessions.records import (
    SessionRecord,
    TurnRecord,
    insert_session,
    now,
    reindex,
    session_named,
    sessions_by_use,
    turns_of,
    update_session,
)
from mlxchat.sessions.salvage import rows
from mlxchat.sessions.serials import Serials
from mlxchat.sessions.tables import NAMES, insertion, is_sound
from mlxchat.units import count

MOST_NAMED = 5
# SQLite's files next to a database: the write-ahead log and its shared memory or, on a network
# disk, the rollback journal.
COMPANIONS = ("wal", "shm", "journal")


def repair(path: Path) -> str:
    """Replace the database; return what was lost. While this runs, the caller must keep others from
    opening it. Raises OSError or sqlite3.Error, and then changes nothing."""
    new = path.with_name(f"{path.name}.new")
    for file in _files(new):
        file.unlink(missing_ok=True)
    with _no_writers(path), closing(connect(new, lambda _: None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        renamed = _copy(path, connection)
        report = "; ".join([*map(_renamed, renamed), _report(connection)])
        connection.execute("COMMIT")
        connection.close()
        new.replace(_complete(path))
        kept = finish(path)
    return f"{report}; the damaged file is kept as {kept}"


def finish(path: Path) -> Path | None:
    """Put a complete new database in the place of the damaged one, even if a kill interrupted that;
    return where the damaged one is kept, or None if there is nothing to finish. Raises OSError."""
    complete = _complete(path)
    if not complete.exists():
        return None
    kept = path.with_name(f"{path.name}.damaged-{datetime.now():%Y-%m-%d-%H%M%S}")
    # The new database must never meet the log of the old one.
    for file, kept_file in zip(_files(path), _files(kept), strict=True):
        with suppress(FileNotFoundError):
            file.replace(kept_file)
    complete.replace(path)
    sync_directory(path.parent)
    return kept


def _complete(path: Path) -> Path:
    """The name of a new database that has everything."""
    return path.with_name(f"{path.name}.repaired")


@contextmanager
def _no_writers(path: Path) -> Iterator[None]:
    """Run the body while no transaction writes to the database, if it is sound enough for any."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            # With any other error, nobody else can begin one either.
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise
        yield


def _copy(path: Path, connection: sqlite3.Connection) -> list[str]:
    """Copy every sound row; return the new names of the sessions whose own row is lost."""
    for id_, row in rows(path):
        for table, names in NAMES.items():
            own_id = id_ if table == "sessions" else 0
            if len(row) == len(names) and is_sound(table, row, own_id):
                statement = insertion(table, with_id=True).replace("INSERT", "INSERT OR IGNORE", 1)
                connection.execute(statement, (id_, *row))
    reindex(connection)
    orphans = connection.execute(
        "SELECT DISTINCT session FROM turns WHERE session NOT IN (SELECT id FROM sessions)"
    )
    return [
        _insert_orphaned(connection, id_, turns_of(connection, id_)[0])
        for (id_,) in orphans.fetchall()
    ]


def _renamed(name: str) -> str:
    return f"session {name!r} has lost its name, its settings and perhaps turns"


def _insert_orphaned(connection: sqlite3.Connection, id_: int, turns: list[TurnRecord]) -> str:
    """A session for turns whose own is lost; returns its name."""
    serials = [each.serial for each in turns]
    name = f"recovered-{id_}"
    while session_named(connection, name) is not None:
        name += "_"
    record = SessionRecord(
        name, updated=now(), serials=Serials.of(serials), last_serial=serials[-1]
    )
    inserted = insert_session(connection, record)
    connection.execute("UPDATE sessions SET id = ? WHERE id = ?", (id_, inserted))
    update_session(connection, replace(record, id=id_))
    return name


def _report(connection: sqlite3.Connection) -> str:
    sessions = sessions_by_use(connection)
    if not sessions:
        return "no session could be read"
    lost: list[str] = []
    for session in sessions:
        turns, _ = turns_of(connection, session.id)
        found = {each.serial for each in turns}
        lost += [
            f"turn {number} of {session.name!r}"
            for number, serial in enumerate(session.serials, 1)
            if serial not in found
        ]
    if not lost:
        return "nothing is lost"
    more = f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
    return f"{count(len(lost), 'turn')} lost: {', '.join(lost[:MOST_NAMED])}{more}"


def _files(path: Path) -> list[Path]:
    return [path, *(Path(f"{path}-{companion}") for companion in COMPANIONS)]
