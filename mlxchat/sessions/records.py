"""Sessions and turns as rows of the database: written, and read without trusting them.

The columns of a row are the fields of its dataclass; the checksum is all that reading checks.
"""

from __future__ import annotations

import json
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

import numpy as np

from mlxchat.chat.turn import Turn
from mlxchat.errors import SessionError
from mlxchat.recall.words import words
from mlxchat.sessions import tables
from mlxchat.sessions.saved import Scalar
from mlxchat.sessions.tables import INDEX, INSERTION, SELECTION, UPDATE, Value, sealed

FIRST_CHARS = 200
# Of a turn that is longer, the rest is not searched: indexing it would take seconds.
INDEXED_CHARS = 1 << 20
_ID_BYTES = 4
MAX_NAME_CHARS = 100
_NAME = re.compile(r"\w(?:[\w .-]*[\w-])?")


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session without its turns, of which it has `turns`. `created` and `updated` are times as
    `now` writes them, `text_bytes` the size of the turns, `first` the start of the first message.
    If the row is `damaged`, only its name is left."""

    name: str
    created: str | None = None
    updated: str = ""
    system: str | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    turns: int = 0
    forgotten: int = 0
    text_bytes: int = 0
    first: str = ""
    id: int = 0
    damaged: bool = False

    @property
    def columns(self) -> tuple[Value, ...]:
        values = [_encoded(getattr(self, name)) for name in _SESSION_FIELDS]
        return sealed("sessions", (*values, folded(self.name)))

    @classmethod
    def of(cls, id_: int, columns: Sequence[Value]) -> SessionRecord:
        if not tables.is_sound("sessions", columns):
            name = columns[0]
            known = isinstance(name, str) and is_name(name)
            return cls(str(name) if known else f"damaged-{id_}", id=id_, damaged=True)
        return cls(**_decoded(_SESSION_FIELDS, columns), id=id_)


_SESSION_FIELDS = [each.name for each in fields(SessionRecord)][:-2]
_TURN_FIELDS = [each.name for each in fields(Turn)]
# How a column that is not a text or a number is read.
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "settings": json.loads,
    "later_thoughts": lambda text: tuple(json.loads(text)),
    "ids": lambda data: None if data is None else np.frombuffer(data, "<i4").astype(np.int32),
    **dict.fromkeys(("exact", "pinned"), bool),
}


def _encoded(value: Any) -> Value:
    match value:
        case str():
            return clean(value)
        case bool():
            return int(value)
        case np.ndarray():
            return value.astype("<i4").tobytes()
        case tuple() | dict():
            return json.dumps(value)
    return value


def _decoded(names: Sequence[str], columns: Sequence[Value]) -> dict[str, Any]:
    """The first columns, by their names."""
    found = zip(names, columns, strict=False)
    return {name: _READERS[name](value) if name in _READERS else value for name, value in found}


def check_name(name: str) -> None:
    """Raises SessionError, describing valid names, for an invalid one."""
    if not is_name(name):
        raise SessionError(
            f"invalid session name {name[:MAX_NAME_CHARS]!r}: use letters, digits, spaces and "
            f"-_., at most {MAX_NAME_CHARS} characters, starting with a letter or digit and not "
            "ending with a space or dot"
        )


def is_name(name: str) -> bool:
    return len(name) <= MAX_NAME_CHARS and _NAME.fullmatch(name) is not None


def folded(name: str) -> str:
    """Equal for names that differ only in case or in the encoding of accents: they are the same."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def already_exists(name: str) -> SessionError:
    return SessionError(f"session {name!r} already exists: choose another name")


def not_found(name: str, names: Iterable[str]) -> SessionError:
    """The error for a missing session, with the name most like it."""
    near = get_close_matches(name, list(names), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return SessionError(f"no session named {name!r}{hint}")


def now() -> str:
    """UTC; sorts by time."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def insert_session(connection: sqlite3.Connection, record: SessionRecord) -> int:
    """Its id, which is never used again. Raises sqlite3.IntegrityError if the name is taken."""
    return _inserted(connection.execute(INSERTION["sessions"], record.columns))


def update_session(connection: sqlite3.Connection, record: SessionRecord) -> None:
    _update(connection, "sessions", (*record.columns, record.id))


def sessions_by_use(connection: sqlite3.Connection) -> list[SessionRecord]:
    """All sessions, most recently used first."""
    found = connection.execute(f"{SELECTION['sessions']} ORDER BY updated DESC, id DESC")
    return [SessionRecord.of(id_, columns) for id_, *columns in found]


def session_named(connection: sqlite3.Connection, name: str) -> SessionRecord | None:
    # The table itself, since SQLite does not notice an index that leads to another session.
    found = connection.execute(
        f"{SELECTION['sessions']} NOT INDEXED WHERE folded = ?", (folded(name),)
    ).fetchone()
    if found is not None:
        return SessionRecord.of(found[0], found[1:])
    # A damaged row may have lost its name.
    return next((each for each in sessions_by_use(connection) if each.name == name), None)


def session_with(connection: sqlite3.Connection, id_: int) -> SessionRecord | None:
    found = connection.execute(f"{SELECTION['sessions']} WHERE id = ?", (id_,)).fetchone()
    return None if found is None else SessionRecord.of(id_, found[1:])


def delete_session(connection: sqlite3.Connection, id_: int) -> None:
    delete_turns(connection, "session = ?", (id_,))
    connection.execute("DELETE FROM sessions WHERE id = ?", (id_,))


def insert_turn(connection: sqlite3.Connection, session: int, turn: Turn) -> int:
    """The id of its row, which is never used again: the turns of a session are in its order."""
    id_ = _inserted(connection.execute(INSERTION["turns"], turn_columns(session, turn)))
    _add_words(connection, id_, turn)
    return id_


def update_turn(connection: sqlite3.Connection, id_: int, session: int, turn: Turn) -> None:
    before = turn_with(connection, id_)
    _update(connection, "turns", (*turn_columns(session, turn), id_))
    if before is not None and _words(before[1]) != _words(turn):
        _remove_words(connection, id_, before[1])
        _add_words(connection, id_, turn)


def delete_turns(connection: sqlite3.Connection, where: str, parameters: Sequence[Value]) -> None:
    """Delete the turns that a condition in SQL selects."""
    found = connection.execute(f"{SELECTION['turns']} WHERE {where}", parameters).fetchall()
    for id_, *columns in found:
        # What the index says of a row that is gone is never shown.
        if tables.is_sound("turns", columns):
            _remove_words(connection, id_, _turn_of(columns))
        connection.execute("DELETE FROM turns WHERE id = ?", (id_,))


def turns_of(
    connection: sqlite3.Connection, session: int
) -> tuple[list[tuple[int, Turn]], list[int]]:
    """The turns of a session in order, each with the id of its row; and the rows of those that are
    damaged."""
    found: list[tuple[int, Turn]] = []
    damaged: list[int] = []
    query = f"{SELECTION['turns']} WHERE session = ? ORDER BY id"
    for id_, *columns in connection.execute(query, (session,)).fetchall():
        if tables.is_sound("turns", columns) and columns[-2] == session:
            found.append((id_, _turn_of(columns)))
        else:
            damaged.append(id_)
    return found, damaged


def turn_with(connection: sqlite3.Connection, id_: int) -> tuple[int, Turn] | None:
    """The session's id and the turn; None if there is none, or it is damaged."""
    found = connection.execute(f"{SELECTION['turns']} WHERE id = ?", (id_,)).fetchone()
    if found is None or not tables.is_sound("turns", found[1:]):
        return None
    return found[-2], _turn_of(found[1:])


def number_of(connection: sqlite3.Connection, session: int, id_: int) -> int:
    """The number of a turn in its session, counted from 1."""
    query = "SELECT COUNT(*) FROM turns WHERE session = ? AND id <= ?"
    (number,) = connection.execute(query, (session, id_)).fetchone()
    return int(number)


def rebuild_indexes(connection: sqlite3.Connection) -> None:
    """From the tables, which do not change."""
    connection.execute("REINDEX")
    # SQLite drops only an index that it can open: make it empty.
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.execute(INDEX)
        for table in ("words_data", "words_idx", "words_docsize", "words_config"):
            connection.execute(f"DELETE FROM {table}")
            for row in empty.execute(f"SELECT * FROM {table}"):
                connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    connection.execute("DROP TABLE words")
    connection.execute(INDEX)
    for id_, *columns in connection.execute(SELECTION["turns"]):
        if tables.is_sound("turns", columns):
            _add_words(connection, id_, _turn_of(columns))


def _add_words(connection: sqlite3.Connection, id_: int, turn: Turn) -> None:
    connection.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (id_, _words(turn)))


def _remove_words(connection: sqlite3.Connection, id_: int, turn: Turn) -> None:
    connection.execute(
        "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", (id_, _words(turn))
    )


def _words(turn: Turn) -> str:
    return " ".join(words(clean(f"{turn.reply}\n{turn.user}")[:INDEXED_CHARS]))


def turn_columns(session: int, turn: Turn) -> tuple[Value, ...]:
    """The row of a turn, with its checksum."""
    values = [_encoded(getattr(turn, name)) for name in _TURN_FIELDS]
    return sealed("turns", (*values, session))


def _turn_of(columns: Sequence[Value]) -> Turn:
    turn = Turn(**_decoded(_TURN_FIELDS, columns))
    return replace(turn, forgotten=bool(turn.forgotten))


def _update(connection: sqlite3.Connection, table: str, values: Sequence[Value]) -> None:
    """Raises SessionError if the row is gone, which SQL does not report."""
    if connection.execute(UPDATE[table], values).rowcount != 1:
        raise SessionError(f"a row of {table} has disappeared from the database")


def _inserted(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def clean(text: str) -> str:
    """Without unpaired surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def size_bytes(turn: Turn) -> int:
    texts = f"{turn.user}{turn.reply}{turn.thought}".encode("utf-8", "replace")
    return len(texts) + (0 if turn.ids is None else _ID_BYTES * len(turn.ids))


def beginning(turns: Sequence[Turn]) -> str:
    """The start of the first message or, if that is long, of the question at its end after the
    documents."""
    message = turns[0].user if turns else ""
    _, blank, end = message.rstrip().rpartition("\n\n")
    shown = f"… {end}" if blank and len(message) > FIRST_CHARS else message
    return shown[:FIRST_CHARS]
