"""All sessions: list, read and search them, and rename or delete closed ones.

Nothing here needs a model. `session` is for a chat in progress.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mlxchat.errors import SessionError
from mlxchat.files import holder, remove_unfinished
from mlxchat.recall.words import words
from mlxchat.sessions import session as sessions
from mlxchat.sessions.database import Database, session_errors
from mlxchat.sessions.earlier import insert_saved
from mlxchat.sessions.journal import read_contents
from mlxchat.sessions.names import already_exists, check_name
from mlxchat.sessions.records import (
    SessionRecord,
    delete_session,
    seconds,
    session_with,
    turn_with,
)
from mlxchat.sessions.reply_file import reply_path
from mlxchat.sessions.saved import Saved, read_messages
from mlxchat.sessions.session import existing, locked, records_by_use

MOST_FINDS = 50
# Of very many turns that contain the words, only the latest are ranked, by their beginnings.
RANKED = 300
MOST_CHARS = 20_000
# The usual constants of BM25, and the length of a usual turn.
SATURATION, LENGTH_WEIGHT = 1.2, 0.75
USUAL_WORDS = 100


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A summary of a session. `updated` is in seconds since 1970, `bytes` its size on the disk,
    `first` the start of the first message or, if that is long, of the question at its end after the
    documents, `open_in` the process that has it open. If it cannot be
    read, `error` is the reason, and everything else is missing."""

    name: str
    turns: int
    forgotten: int
    updated: float
    bytes: int
    first: str
    model: str | None
    open_in: int | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Find:
    """A turn that contains the words, and its line that contains most of them. Turns count from 1;
    `role` is "user" or "assistant"."""

    name: str
    turn: int
    role: str
    line: str


def database_path() -> Path:
    return Database().path


def latest() -> str | None:
    """The most recently used session that has turns. Raises SessionError."""
    with Database() as database:
        # The only message of one may have been rejected.
        return next(
            (each.name for each in records_by_use(database) if each.serials or each.error), None
        )


def listing() -> list[SessionInfo]:
    """All sessions, most recently used first. Raises SessionError."""
    with Database() as database:
        records = records_by_use(database)
        files = _files(database.directory)
        return [_info(database, record, files) for record in records]


def read_session(name: str) -> Saved:
    """Read a session, even if it is open. Raises SessionError."""
    with Database() as database, session_errors(f"read session {name!r}"):
        record = existing(database, name)
        if record.error is not None:
            raise SessionError(record.error)
        return database.read(
            lambda connection: read_contents(connection, database.directory, record)
        )


def rename(old: str, new: str) -> None:
    """Raises SessionError: not found, open, or the new name is taken or invalid."""
    check_name(new)
    with Database() as database:
        record = existing(database, old)
        with locked(database, record):
            sessions.rename(database, record.id, record.name, new)


def remove(name: str) -> None:
    """Delete a session permanently. Raises SessionError, and deletes nothing, if it is open."""
    with Database() as database:
        record = existing(database, name)
        snapshot = sessions.snapshot_path(database, record.id)
        with locked(database, record), session_errors(f"remove session {name!r}"):
            remove_unfinished(snapshot)
            snapshot.unlink(missing_ok=True)
            reply_path(database.directory, record.id).unlink(missing_ok=True)
            database.write(lambda connection: delete_session(connection, record.id))


def import_messages(path: Path, name: str) -> int:
    """Make a session of a file of messages; return the number of turns. Raises SessionError."""
    check_name(name)
    saved = read_messages(path)

    def insert(connection: sqlite3.Connection) -> None:
        try:
            insert_saved(connection, name, saved)
        except sqlite3.IntegrityError:
            raise already_exists(name) from None

    with Database() as database, session_errors(f"import {path}"):
        taken = sessions.find(database, name)
        if taken is not None:
            raise already_exists(taken.name)
        with sessions.named(database, name):
            database.write(insert)
    return len(saved.turns)


def search(wanted: str) -> list[Find]:
    """The turns that contain all the words, or words that begin with them, unless the word itself
    is frequent; best first. Raises SessionError."""
    terms = words(wanted)
    with Database() as database, session_errors("search the sessions"):
        if not terms or not database.exists:
            return []
        return database.read(lambda connection: list(islice(_found(connection, terms), MOST_FINDS)))


def prune_snapshots(keep: int = 10) -> int:
    """Delete all snapshots except those of the `keep` most recently used sessions; return how many.

    Snapshots can be made again. One that cannot be deleted is left for the next time.
    """
    pruned = 0
    with Database() as database:
        for record in records_by_use(database)[keep:]:
            snapshot = sessions.snapshot_path(database, record.id)
            if not snapshot.is_file():
                continue
            with suppress(SessionError, OSError), locked(database, record):
                remove_unfinished(snapshot)
                snapshot.unlink()
                pruned += 1
    return pruned


def _info(database: Database, record: SessionRecord, files: dict[str, int]) -> SessionInfo:
    model = record.settings.get("model")
    is_locked = sessions.lock_name(record.id) in files
    return SessionInfo(
        name=record.name,
        turns=len(record.serials),
        forgotten=record.forgotten,
        updated=seconds(record.updated),
        bytes=record.text_bytes + files.get(sessions.snapshot_name(record.id), 0),
        first=record.first,
        model=model if isinstance(model, str) else None,
        open_in=holder(sessions.lock_path(database, record.id)) if is_locked else None,
        error="the row of this session is damaged" if record.damaged else record.error,
    )


def _files(directory: Path) -> dict[str, int]:
    """Their sizes by name, in bytes."""
    with suppress(OSError), os.scandir(directory) as entries:
        return {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries}
    return {}


def _found(connection: sqlite3.Connection, terms: list[str]) -> Iterator[Find]:
    # In quotes, nothing in a word is an operator; a word contains no quotes.
    exactly = [f'"{term}"' for term in terms]
    # SQLite reads all turns that contain words with a frequent beginning, 0.1 s of two million.
    query = " ".join(
        each if len(_latest(connection, each)) == RANKED else f"{each}*" for each in exactly
    )
    latest = _latest(connection, query)
    found = [each for id_ in latest if (each := turn_with(connection, id_)) is not None]
    found.sort(key=lambda each: _relevance(f"{each[2].user}\n{each[2].reply}", terms), reverse=True)
    for session, serial, turn in found:
        record = session_with(connection, session)
        number = None if record is None else record.serials.number_of(serial)
        if record is not None and number is not None:
            yield Find(record.name, number, *_best_line(turn.user, turn.reply, terms))


def _latest(connection: sqlite3.Connection, query: str) -> list[int]:
    """The latest turns that match. Not the best by SQLite's own rank, for which it would look at
    every turn that contains the most frequent word."""
    rows = connection.execute(
        "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?", (query, RANKED)
    )
    return [row[0] for row in rows]


def _relevance(text: str, terms: list[str]) -> float:
    """Higher for a text that is shorter, or contains the words more often; it contains them all.
    BM25 without the words' rarity, which is the same for all these texts."""
    found = words(text[:MOST_CHARS])
    length = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * len(found) / USUAL_WORDS)
    counts = [sum(word.startswith(stem) for word in found) for stem in map(_stem, terms)]
    return sum(count / (count + length) for count in counts)


def _best_line(user: str, reply: str, terms: list[str]) -> tuple[str, str]:
    """Who says most of the words in one line, and the line."""
    stems = [_stem(term) for term in terms]
    lines = [
        (role, line.strip())
        for role, text in (("user", user), ("assistant", reply))
        for line in text[:MOST_CHARS].splitlines()
    ]

    def matches(line: tuple[str, str]) -> int:
        found = words(line[1])
        return sum(any(word.startswith(stem) for word in found) for stem in stems)

    return max(lines, key=matches, default=("user", ""))


def _stem(term: str) -> str:
    """Its beginning, which its other forms share."""
    return term[: max(3, len(term) - 2)]
