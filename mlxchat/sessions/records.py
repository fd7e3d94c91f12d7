"""Sessions and turns as rows of the database: written, and read without trusting them.

The columns of a table are the fields of its dataclass, and a checksum, which is all that reading
checks: SQLite notices damage to its own structures, but not to the texts in them.
"""

from __future__ import annotations

import json
import re
import sqlite3
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

import numpy as np

from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.recall.words import words

Scalar = str | int | float | bool | None
Value = str | int | bytes | None

FIRST_CHARS = 200
# Of a turn that is longer, the rest is not searched: indexing it would take seconds.
INDEXED_CHARS = 1 << 20
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

    @classmethod
    def of(cls, row: Sequence[Any]) -> SessionRecord:
        """From a row as `SELECTION` reads it."""
        if not _is_sound("sessions", row):
            is_known = isinstance(row[1], str) and is_name(row[1])
            return cls(row[1] if is_known else f"damaged-{row[0]}", id=row[0], damaged=True)
        return cls(**_decoded("sessions", row), id=row[0])


_FIELDS: Mapping[str, list[str]] = {
    "sessions": [each.name for each in fields(SessionRecord) if each.name not in ("id", "damaged")],
    "turns": [each.name for each in fields(Turn)],
}
# The columns after the id. The checksum is of all before it; `ids` are little-endian int32,
# `settings` and `later_thoughts` JSON.
_COLUMNS = {
    "sessions": [*_FIELDS["sessions"], "folded", "checksum"],
    "turns": [*_FIELDS["turns"], "session", "checksum"],
}
_INSERTION = {
    table: f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    for table, names in _COLUMNS.items()
}
_UPDATE = {
    table: f"UPDATE {table} SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?"
    for table, names in _COLUMNS.items()
}
_SELECTION = {
    table: f"SELECT id, {', '.join(names)} FROM {table}" for table, names in _COLUMNS.items()
}
# The words of each turn, by its id, found in all their forms.
_INDEX = "CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='porter unicode61')"
SCHEMA = (
    *(
        f"CREATE TABLE {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, {', '.join(names)})"
        for table, names in _COLUMNS.items()
    ),
    "CREATE UNIQUE INDEX sessions_by_name ON sessions (folded)",
    "CREATE INDEX turns_by_session ON turns (session)",
    "CREATE INDEX sessions_by_use ON sessions (updated)",
    _INDEX,
)
# How a column that is not a text or a number is read.
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "settings": json.loads,
    "later_thoughts": lambda text: tuple(json.loads(text)),
    "ids": lambda data: None if data is None else np.frombuffer(data, "<i4").astype(np.int32),
    **dict.fromkeys(("exact", "pinned"), bool),
}


def _encoded(table: str, value: object, last: Value) -> tuple[Value, ...]:
    """The fields of a dataclass and the `last` column, with their checksum."""
    columns = [*(_column(getattr(value, name)) for name in _FIELDS[table]), last]
    return (*columns, _checksum(table, columns))


def _column(value: Any) -> Value:
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


def _decoded(table: str, row: Sequence[Any]) -> dict[str, Any]:
    """The fields by their names."""
    found = zip(_FIELDS[table], row[1:], strict=False)
    return {name: _READERS[name](value) if name in _READERS else value for name, value in found}


def _is_sound(table: str, row: Sequence[Any]) -> bool:
    """Whether the row is as it was `_encoded`."""
    return bool(row[-1] == _checksum(table, row[1:-1]))


def _checksum(table: str, values: Sequence[Value]) -> int:
    return zlib.crc32(json.dumps([table, *values], default=bytes.hex).encode())


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
    return _insert(connection, "sessions", record, folded(record.name))


def update_session(connection: sqlite3.Connection, record: SessionRecord) -> None:
    _update(connection, "sessions", record.id, record, folded(record.name))


def sessions_by_use(connection: sqlite3.Connection) -> list[SessionRecord]:
    """All sessions, most recently used first."""
    query = f"{_SELECTION['sessions']} ORDER BY updated DESC, id DESC"
    return [SessionRecord.of(row) for row in connection.execute(query)]


def session_named(connection: sqlite3.Connection, name: str) -> SessionRecord | None:
    # The table itself, since SQLite does not notice an index that leads to another session.
    query = f"{_SELECTION['sessions']} NOT INDEXED WHERE folded = ?"
    row = connection.execute(query, (folded(name),)).fetchone()
    if row is not None:
        return SessionRecord.of(row)
    # A damaged row may have lost its name.
    return next((each for each in sessions_by_use(connection) if each.name == name), None)


def session_with(connection: sqlite3.Connection, id_: int) -> SessionRecord | None:
    row = connection.execute(f"{_SELECTION['sessions']} WHERE id = ?", (id_,)).fetchone()
    return None if row is None else SessionRecord.of(row)


def rename_session(connection: sqlite3.Connection, id_: int, name: str) -> None:
    record = session_with(connection, id_)
    if record is None:
        raise SessionError("the session no longer exists")
    update_session(connection, replace(record, name=name))


def delete_session(connection: sqlite3.Connection, id_: int) -> None:
    delete_turns(connection, "session = ?", (id_,))
    connection.execute("DELETE FROM sessions WHERE id = ?", (id_,))


def insert_turn(connection: sqlite3.Connection, session: int, turn: Turn) -> int:
    """The id of its row, which is never used again: the turns of a session are in its order."""
    id_ = _insert(connection, "turns", turn, session)
    _index(connection, id_, None, turn)
    return id_


def update_turn(connection: sqlite3.Connection, id_: int, session: int, turn: Turn) -> None:
    before = turn_with(connection, id_)
    _update(connection, "turns", id_, turn, session)
    if before is not None:
        _index(connection, id_, before[1], turn)


def delete_turns(connection: sqlite3.Connection, where: str, parameters: Sequence[Value]) -> None:
    """Delete the turns that a condition in SQL selects."""
    for row in connection.execute(f"{_SELECTION['turns']} WHERE {where}", parameters).fetchall():
        # What the index says of a row that is gone is never shown.
        if _is_sound("turns", row):
            _index(connection, row[0], _turn_of(row), None)
        connection.execute("DELETE FROM turns WHERE id = ?", (row[0],))


def turns_of(
    connection: sqlite3.Connection, session: int
) -> tuple[list[tuple[int, Turn]], list[int]]:
    """The turns of a session in order, each with the id of its row; and the rows of those that are
    damaged."""
    rows = connection.execute(
        f"{_SELECTION['turns']} WHERE session = ? ORDER BY id", (session,)
    ).fetchall()
    sound = [row for row in rows if _is_sound("turns", row) and row[-2] == session]
    damaged = {row[0] for row in rows} - {row[0] for row in sound}
    return [(row[0], _turn_of(row)) for row in sound], sorted(damaged)


def turn_with(connection: sqlite3.Connection, id_: int) -> tuple[int, Turn] | None:
    """The session's id and the turn; None if there is none, or it is damaged."""
    row = connection.execute(f"{_SELECTION['turns']} WHERE id = ?", (id_,)).fetchone()
    if row is None or not _is_sound("turns", row):
        return None
    return row[-2], _turn_of(row)


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
        empty.execute(_INDEX)
        for table in ("words_data", "words_idx", "words_docsize", "words_config"):
            connection.execute(f"DELETE FROM {table}")
            for row in empty.execute(f"SELECT * FROM {table}"):
                connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    connection.execute("DROP TABLE words")
    connection.execute(_INDEX)
    for row in connection.execute(_SELECTION["turns"]):
        if _is_sound("turns", row):
            _index(connection, row[0], None, _turn_of(row))


def _index(
    connection: sqlite3.Connection, id_: int, before: Turn | None, after: Turn | None
) -> None:
    """Replace the words of a turn in the index."""
    old, new = (None if turn is None else _words(turn) for turn in (before, after))
    if old is not None and old != new:
        connection.execute(
            "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", (id_, old)
        )
    if new is not None and old != new:
        connection.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (id_, new))


def _words(turn: Turn) -> str:
    return " ".join(words(clean(f"{turn.reply}\n{turn.user}")[:INDEXED_CHARS]))


def _insert(connection: sqlite3.Connection, table: str, value: object, last: Value) -> int:
    cursor = connection.execute(_INSERTION[table], _encoded(table, value, last))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _update(
    connection: sqlite3.Connection, table: str, id_: int, value: object, last: Value
) -> None:
    """Raises SessionError if the row is gone, which SQL does not report."""
    columns = _encoded(table, value, last)
    if connection.execute(_UPDATE[table], (*columns, id_)).rowcount != 1:
        raise SessionError(f"a row of {table} has disappeared from the database")


def _turn_of(row: Sequence[Any]) -> Turn:
    turn = Turn(**_decoded("turns", row))
    return replace(turn, forgotten=bool(turn.forgotten))


def is_same(one: Turn, other: Turn) -> bool:
    """Whether their rows are the same."""
    # Of thousands of turns, nearly all are unchanged.
    return one is other or _encoded("turns", one, 0) == _encoded("turns", other, 0)


def clean(text: str) -> str:
    """Without unpaired surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def size_bytes(turn: Turn) -> int:
    texts = f"{turn.user}{turn.reply}{turn.thought}".encode("utf-8", "replace")
    return len(texts) + (0 if turn.ids is None else 4 * len(turn.ids))


def beginning(turns: Sequence[Turn]) -> str:
    """The start of the first message or, if that is long, of the question at its end after the
    documents."""
    message = turns[0].user if turns else ""
    _, blank, end = message.rstrip().rpartition("\n\n")
    shown = f"… {end}" if blank and len(message) > FIRST_CHARS else message
    return shown[:FIRST_CHARS]
