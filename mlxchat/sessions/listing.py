"""All sessions: list, read and search them, and rename or delete closed ones.

Nothing here needs a model. `session` is for a chat in progress.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mlxchat.errors import SessionError, UsageError
from mlxchat.files import holder
from mlxchat.recall.choice import words
from mlxchat.sessions import backup, records
from mlxchat.sessions import session as sessions
from mlxchat.sessions.database import Database, session_errors
from mlxchat.sessions.records import Saved, SessionRecord
from mlxchat.sessions.session import Session, existing, read_contents
from mlxchat.sessions.transcript import read_messages
from mlxchat.text.documents import name_of

MOST_FINDS = 50
# More turns are not ranked, which takes seconds for thousands: the latest come first.
RANKED = 300
# Of a longer text, the rest is not searched for the best line.
MOST_CHARS = 20_000
_CHUNK = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Find:
    """A turn that contains the words, and its line that contains most of them, of which the closest
    comes right after `at`. Turns count from 1; `role` is "user" or "assistant"."""

    name: str
    turn: int
    role: str
    line: str
    at: int


def latest() -> str | None:
    """The most recently used session. Raises SessionError."""
    with Database() as database:
        return next((each.name for each in _records(database)), None)


def listing(*, everything: bool = False, mends: bool = True) -> list[SessionRecord]:
    """All sessions, most recently used first, with the sizes of their snapshots; single questions
    only if `everything` is wanted. `mends` is that of Database. Raises SessionError."""
    with Database(mends=mends) as database:
        chats = (each for each in _records(database) if everything or not each.is_question)
        return [_with_files(database, record) for record in chats]


def unused_since(time_s: float, *, everything: bool = False) -> list[str]:
    """The single questions last used before that time, or all sessions if `everything` is wanted,
    except those that are open or damaged. Raises SessionError."""
    return [
        each.name
        for each in listing(everything=True)
        if each.updated < time_s
        and (everything or each.is_question)
        and not (each.damaged or each.open_in)
    ]


def read_session(name: str) -> Saved:
    """Read a session, even if it is open. Raises SessionError."""
    with Database() as database, session_errors(f"read session {name!r}"):
        record = _with_files(database, existing(database, name))
        return database.read(lambda c: read_contents(c, database.directory, record), Saved())


def rename(old: str, new: str) -> None:
    """Raises SessionError: not found, open, or the new name is taken or invalid."""
    with Session.open(old) as session:
        session.rename(new)


def remove(*names: str) -> None:
    """Delete sessions for good, also from the backup. Raises SessionError at an open one."""
    with Database() as database:
        for name in names:
            # Else some would be deleted before an open one.
            Session.open(name).close()
        try:
            with session_errors("renew the backup"), backup.renewed(database.path):
                for name in names:
                    with Session.open(name) as session:
                        session.delete()
                database.erase_deleted()
        except sqlite3.Error as error:
            raise SessionError(f"cannot renew the backup: {error}") from error


def import_messages(path: Path, name: str) -> int:
    """Make a session of a file of messages; return the number of turns. Raises SessionError."""
    saved = read_messages(path)
    records.check_name(name)
    if not (saved.turns or saved.remembered):
        raise SessionError(f"{name_of(str(path))} has no message of a user")
    with Session.open(name, create=True) as session:
        if session.snapshot_path is not None:
            raise records.already_exists(session.name)
        try:
            session.record(saved.system, saved.turns, **saved.settings)
        except SessionError as error:
            raise SessionError(f"cannot import {name_of(str(path))}: {session.outage}") from error
    return len(saved.turns)


def search(wanted: str) -> list[Find]:
    """The turns with all the words, or beginnings, best first. Raises SessionError, UsageError."""
    if not (terms := words(wanted)):
        raise UsageError("no words to search for: use letters or digits")
    with Database() as database, session_errors("search the sessions"):
        return database.read(lambda connection: _found(connection, terms), [])


def _records(database: Database) -> list[SessionRecord]:
    with session_errors("list the sessions"):
        return database.read(records.sessions_by_use, [])


def _with_files(database: Database, record: SessionRecord) -> SessionRecord:
    size_bytes = record.bytes
    with suppress(OSError):
        size_bytes += sessions.snapshot_path(database, record.id).lstat().st_size
    open_in = holder(sessions.lock_path(database, record.name))
    return replace(record, bytes=size_bytes, open_in=open_in)


def _found(connection: sqlite3.Connection, terms: list[str]) -> list[Find]:
    matching = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY"
    # Beginnings only if no turn has the words: that of "being", in all its forms, is "be".
    for beginning in ("", "*"):
        # In quotes, nothing in a word is an operator; a word contains no quotes.
        query = " ".join(f'"{term}"{beginning}' for term in terms)
        rows = connection.execute(f"{matching} rowid DESC LIMIT ?", (query, RANKED)).fetchall()
        if rows:
            break
    if len(rows) < RANKED:
        rows = connection.execute(f"{matching} rank", (query,)).fetchall()
    found: list[Find] = []
    for (id_,) in rows[:MOST_FINDS]:
        # The index may know a turn that is damaged.
        if (row := records.turn_with(connection, id_)) is None:
            continue
        session, turn = row
        if (record := records.session_with(connection, session)) is not None:
            number = records.number_of(connection, session, id_)
            found.append(Find(record.name, number, *_best_line(turn.user, turn.reply, terms)))
    return found


def _best_line(user: str, reply: str, terms: list[str]) -> tuple[str, str, int]:
    """Who says most of the words in one line, the line, and where the word before them begins."""
    best = -1, "user", "", 0
    for role, text in (("user", user), ("assistant", reply)):
        for line in filter(None, map(str.strip, text[:MOST_CHARS].splitlines())):
            found = [(each.start(), _alike(each[0], terms)) for each in _CHUNK.finditer(line)]
            likeness = sum(map(max, zip(*(alike for _, alike in found), strict=True)))
            if likeness > best[0]:
                first = max(found, key=lambda each: max(each[1]))[0]
                best = likeness, role, line, line.rfind(" ", 0, max(first - 1, 0)) + 1
    return best[1:]


def _alike(text: str, terms: list[str]) -> list[int]:
    """How many characters of each term a word begins with: its other forms share the first ones."""
    found = words(text)
    return [max((_shared(term, word) for word in found), default=0) for term in terms]


def _shared(one: str, other: str) -> int:
    """How many characters the two begin with alike."""
    return next((n for n in range(len(one)) if one[n : n + 1] != other[n : n + 1]), len(one))
