"""Makes sessions of a file: one of a conversation, or several of another program's export."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

from mlxchat.errors import SessionError
from mlxchat.sessions.database import Database, session_errors
from mlxchat.sessions.earlier import insert_saved
from mlxchat.sessions.exports import conversations
from mlxchat.sessions.foreign import SOURCE, Foreign
from mlxchat.sessions.listing import import_messages
from mlxchat.sessions.names import MAX_NAME_CHARS, check_name, folded, is_name
from mlxchat.sessions.records import sessions_by_use
from mlxchat.sessions.saved import Saved
from mlxchat.sessions.session import is_begun
from mlxchat.sessions.tables import FORMAT

# Room for the number that makes a name different from others.
NAME_CHARS = MAX_NAME_CHARS - 10


@dataclass(slots=True)
class Imported:
    """What was imported: the `names` of the new sessions, and their `turns`.

    `present` conversations had been imported before, `empty` ones have no messages. `left_out`
    counts what sessions cannot hold, by kind. `problem` is why the rest could not be read.
    """

    names: list[str] = field(default_factory=list[str])
    turns: int = 0
    present: int = 0
    empty: int = 0
    left_out: Counter[str] = field(default_factory=Counter[str])
    problem: str = ""


def import_file(
    path: Path, name: str | None, report: Callable[[str, str], object] = lambda *_: None
) -> Imported:
    """Make sessions of the conversations in a file, called `name` or as they are there.

    A name that is taken gets a number, except that of a single conversation as mlxchat exports it.
    `report` is called with the name of a session and what was left out of it. Raises SessionError
    if nothing can be read.
    """
    if name is not None:
        check_name(name)
    found = conversations(path)
    if found is None:
        name = path.stem if name is None else name
        return Imported([name], import_messages(path, name))
    return _import_all(path, name, found, report)


def _import_all(
    path: Path,
    name: str | None,
    found: Iterator[Foreign],
    report: Callable[[str, str], object],
) -> Imported:
    imported = Imported()
    used_s = path.stat().st_mtime
    with Database() as database, session_errors(f"import {path}"):
        records = database.read(sessions_by_use)
        names = _Names({folded(record.name) for record in records})
        known = {record.settings.get(SOURCE) for record in records}
        try:
            for each in found:
                if not each.turns:
                    imported.empty += 1
                elif each.source in known:
                    imported.present += 1
                else:
                    known.add(each.source)
                    session = _insert(database, names, name or _name_of(each), each, used_s)
                    imported.names.append(session)
                    imported.turns += len(each.turns)
                    imported.left_out += each.left_out
                    if each.omissions:
                        report(session, each.omissions)
        except SessionError as error:
            if not (imported.names or imported.present):
                raise
            imported.problem = str(error)
        finally:
            if imported.names:
                # Only now is all of it safe from a power cut: SQLite forces only what is written.
                try:
                    database.write(lambda c: c.execute(f"PRAGMA user_version = {FORMAT}"))
                except OSError as error:
                    imported.problem = f"the import may not survive a power cut: {error}"
    return imported


class _Names:
    """The names of sessions that are taken, folded."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._next: dict[str, int] = {}

    def free(self, name: str) -> str:
        """The name, with a number if it is taken; not offered again."""
        start = self._next.get(folded(name), 2)
        names = chain([(1, name)], ((n, f"{name}-{n}") for n in count(start)))
        number, free = next(each for each in names if folded(each[1]) not in self._taken)
        self._next[folded(name)] = max(start, number + 1)
        self._taken.add(folded(free))
        return free


def _insert(database: Database, names: _Names, name: str, found: Foreign, used_s: float) -> str:
    """Its name."""
    saved = found.saved(used_s)
    while True:
        free = names.free(name)
        if is_begun(database, free):
            continue
        try:
            database.write(lambda c, name=free: _inserted(c, name, saved), forced=False)
        except _TakenError:
            # By another process, meanwhile.
            continue
        return free


class _TakenError(Exception): ...


def _inserted(connection: sqlite3.Connection, name: str, saved: Saved) -> None:
    try:
        insert_saved(connection, name, saved)
    except sqlite3.IntegrityError:
        raise _TakenError from None


def _name_of(found: Foreign) -> str:
    """The title, as a session can be called; otherwise the program."""
    name = re.sub(r"[^\w.-]+", " ", found.title)[:NAME_CHARS].strip(" .-")
    return name if is_name(name) else found.program
