"""What is saved: a database of sessions and turns, JSON with checksums; a file for a begun reply.

Checksums are always compared: SQLite notices damage to its own structures, but not to texts.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
import time
import unicodedata
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlxchat.chat.state import State, Turn
from mlxchat.errors import InvalidName, SessionError
from mlxchat.files import force_to_disk, open_file, open_to_read, write_all
from mlxchat.recall.choice import words
from mlxchat.text.reply_reader import Piece

Scalar = str | int | float | bool | None

FIRST_CHARS = 200
# Of a turn that is longer, the rest is not searched: indexing it would take seconds.
INDEXED_CHARS = 1 << 20
MAX_NAME_CHARS = 100
MAX_REPLY_BYTES = 1 << 28
FORCE_EVERY_S = 0.25
_NAME = re.compile(r"\w(?:[\w .-]*[\w-])?")
NAMED_BY_TIME = re.compile(r"\d{4}-\d\d-\d\d-\d{6}(-\d+)?")
# The setting of a session that began as a single question.
QUESTION = "question"
# The settings that are part of the conversation, as in `State`.
NOTE, REMEMBERED, CLEARED = "note", "remembered", "cleared"

# A row's `value` is a dataclass. The `name` is folded; a turn's words are found in all their forms.
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, name UNIQUE, value,"
    " checksum)",
    "CREATE TABLE IF NOT EXISTS turns (id INTEGER PRIMARY KEY AUTOINCREMENT, session, value,"
    " checksum)",
    "CREATE INDEX IF NOT EXISTS turns_by_session ON turns (session)",
    "CREATE VIRTUAL TABLE IF NOT EXISTS words"
    " USING fts5(text, content='', tokenize='porter unicode61')",
)
# The column that says which session a row is, or belongs to.
_KEYS = {"sessions": "name", "turns": "session"}


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session without its turns, of which it has `turns`. `created` and `updated` are in seconds
    since 1970, `bytes` the size of its turns, `first` the start of the first message, without its
    documents. If the row is `damaged`, only its name is left. `open_in` is a process, if asked."""

    name: str
    created: float = 0.0
    updated: float = 0.0
    system: str | None = None
    settings: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    turns: int = 0
    forgotten: int = 0
    bytes: int = 0
    first: str = ""
    id: int = 0
    damaged: bool = False
    open_in: int | None = None

    @property
    def model(self) -> str | None:
        model = self.settings.get("model")
        return model if isinstance(model, str) else None

    @property
    def is_question(self) -> bool:
        """Whether it is a single question that nobody has named or followed up."""
        is_kept = not NAMED_BY_TIME.fullmatch(self.name) or bool(self.settings.get(REMEMBERED))
        return self.settings.get(QUESTION) is True and self.turns <= 1 and not is_kept

    @property
    def error(self) -> str | None:
        """Why it cannot be read."""
        return "the row of this session is damaged" if self.damaged else None

    @property
    def title(self) -> str:
        """What it is about, and whether a process has it."""
        title = self.error or self.first
        return title if self.open_in is None else f"(open) {title}"


@dataclass(slots=True)
class Saved:
    """A conversation as it was saved; `notices` name what is missing.

    `rows` are its turns in the database, each with the id of its row, 0 if it is to have one: the
    last reply may be longer in `turns`. `last` is the latest row that it had, `lost` how many turns
    are damaged or missing.
    """

    system: str | None = None
    turns: list[Turn] = field(default_factory=list[Turn])
    settings: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    notices: Sequence[str] = ()
    rows: Sequence[tuple[int, Turn]] = ()
    last: int = 0
    lost: int = 0

    @property
    def note(self) -> str | None:
        """The note on forgotten turns."""
        note = self.settings.get(NOTE)
        return note if isinstance(note, str) and note else None

    @property
    def remembered(self) -> tuple[str, ...]:
        """The lines that are remembered; none if they are damaged."""
        with suppress(TypeError, ValueError):
            return tuple(map(str, json.loads(str(self.settings.get(REMEMBERED) or "[]"))))
        return ()

    @property
    def state(self) -> State:
        """The conversation."""
        turns, cleared = tuple(self.turns), self.settings.get(CLEARED)
        cleared = min(cleared, len(turns)) if isinstance(cleared, int) else 0
        return State(self.system, self.note, turns, cleared, remembered=self.remembered)


def others_of(state: State) -> dict[str, Scalar]:
    """The settings that are part of a conversation."""
    lines = json.dumps(state.remembered, ensure_ascii=False) if state.remembered else None
    return {NOTE: state.note, REMEMBERED: lines, CLEARED: state.cleared or None}


def check_name(name: str) -> None:
    """Raises InvalidName, describing valid ones."""
    if not is_name(name):
        raise InvalidName(
            f"invalid session name {name[:MAX_NAME_CHARS]!r}: use letters, digits, spaces and "
            f"-_., at most {MAX_NAME_CHARS} characters, starting with a letter or digit and not "
            "ending with a space or dot"
        )


def is_name(name: str) -> bool:
    # Marks belong to their letters: vowel signs of Hindi, decomposed umlauts.
    unmarked = "".join(each for each in name if unicodedata.category(each)[0] != "M")
    return len(name) <= MAX_NAME_CHARS and _NAME.fullmatch(unmarked) is not None


def folded(name: str) -> str:
    """Equal for names that differ only in case or in the encoding of accents: they are the same."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def already_exists(name: str) -> SessionError:
    return SessionError(f"session {name!r} already exists: choose another name")


# Rows


class _JsonRow(NamedTuple):
    """`value` is None if it, or the `key`, is damaged."""

    id: int
    key: Any
    value: dict[str, Any] | None


def _rows(
    connection: sqlite3.Connection, table: str, where: str, parameters: Sequence[object] = ()
) -> list[_JsonRow]:
    query = f"SELECT id, {_KEYS[table]}, value, checksum FROM {table} WHERE {where}"
    return [
        _JsonRow(id_, key, json.loads(value) if checksum == _checksum(table, key, value) else None)
        for id_, key, value, checksum in connection.execute(query, parameters)
    ]


def _insert(connection: sqlite3.Connection, table: str, key: object, value: object) -> int:
    """Return the id of the row, which is never used again."""
    text = _as_json(value)
    row = (key, text, _checksum(table, key, text))
    cursor = connection.execute(f"INSERT INTO {table} VALUES (NULL, ?, ?, ?)", row)
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _update(
    connection: sqlite3.Connection, table: str, id_: int, key: object, value: object
) -> None:
    """Raises SessionError if the row is gone, which SQL does not report."""
    text = _as_json(value)
    statement = f"UPDATE {table} SET {_KEYS[table]} = ?, value = ?, checksum = ? WHERE id = ?"
    if connection.execute(statement, (key, text, _checksum(table, key, text), id_)).rowcount != 1:
        raise SessionError(f"a row of {table} has disappeared from the database")


def _as_json(value: Any) -> str:
    found = {each.name: getattr(value, each.name) for each in fields(value)}
    return clean(json.dumps(found, ensure_ascii=False, default=_ids_as_text))


def _ids_as_text(ids: np.ndarray) -> str:
    # As numbers, they would take most of the time of reading a session.
    return b64encode(ids.astype("<i4").tobytes()).decode()


def clean(text: str) -> str:
    """Without unpaired surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def _checksum(table: str, key: object, text: object) -> int:
    return zlib.crc32(f"{table} {key} {text}".encode())


# Sessions


def insert_session(connection: sqlite3.Connection, record: SessionRecord) -> int:
    """Return its id. Raises sqlite3.IntegrityError if the name is taken."""
    return _insert(connection, "sessions", folded(record.name), record)


def update_session(connection: sqlite3.Connection, record: SessionRecord) -> None:
    _update(connection, "sessions", record.id, folded(record.name), record)


def sessions_by_use(connection: sqlite3.Connection) -> list[SessionRecord]:
    """All sessions, most recently used first."""
    found = map(_session, _rows(connection, "sessions", "TRUE"))
    return sorted(found, key=lambda each: (each.updated, each.id), reverse=True)


def session_named(connection: sqlite3.Connection, name: str) -> SessionRecord | None:
    # The table itself, since SQLite does not notice an index that leads to another session.
    found = _rows(connection, "sessions", "+name = ?", (folded(name),))
    if found:
        return _session(found[0])
    # A damaged row may have lost its name.
    return next((each for each in sessions_by_use(connection) if each.name == name), None)


def session_with(connection: sqlite3.Connection, id_: int) -> SessionRecord | None:
    return next(map(_session, _rows(connection, "sessions", "id = ?", (id_,))), None)


def delete_session(connection: sqlite3.Connection, id_: int) -> None:
    delete_turns(connection, "session = ?", (id_,))
    connection.execute("DELETE FROM sessions WHERE id = ?", (id_,))


def _session(row: _JsonRow) -> SessionRecord:
    if row.value is not None:
        return replace(SessionRecord(**row.value), id=row.id, damaged=False)
    is_known = isinstance(row.key, str) and is_name(row.key)
    return SessionRecord(row.key if is_known else f"damaged-{row.id}", id=row.id, damaged=True)


# Turns


def insert_turn(connection: sqlite3.Connection, session: int, turn: Turn) -> int:
    """Return the id of its row: the turns of a session are in its order."""
    id_ = _insert(connection, "turns", session, turn)
    _index(connection, id_, None, turn)
    return id_


def update_turn(connection: sqlite3.Connection, id_: int, session: int, turn: Turn) -> None:
    before = turn_with(connection, id_)
    _update(connection, "turns", id_, session, turn)
    if before is not None:
        _index(connection, id_, before[1], turn)


def delete_turns(connection: sqlite3.Connection, where: str, parameters: Sequence[object]) -> None:
    """Delete the turns that a condition in SQL selects."""
    for row in _rows(connection, "turns", where, parameters):
        # What the index says of a row that is gone is never shown.
        if row.value is not None:
            _index(connection, row.id, _turn(row.value), None)
        connection.execute("DELETE FROM turns WHERE id = ?", (row.id,))


def turns_of(
    connection: sqlite3.Connection, session: int
) -> tuple[list[tuple[int, Turn]], list[int]]:
    """The turns of a session in order, each with the id of its row; and the damaged rows."""
    rows = _rows(connection, "turns", "session = ? ORDER BY id", (session,))
    sound = [(row.id, _turn(row.value)) for row in rows if row.value and row.key == session]
    return sound, sorted({row.id for row in rows} - {id_ for id_, _ in sound})


def turn_with(connection: sqlite3.Connection, id_: int) -> tuple[int, Turn] | None:
    """The session's id and the turn; None if there is none, or it is damaged."""
    rows = _rows(connection, "turns", "id = ?", (id_,))
    return next(((row.key, _turn(row.value)) for row in rows if row.value), None)


def number_of(connection: sqlite3.Connection, session: int, id_: int) -> int:
    """The number of a turn in its session, counted from 1."""
    query = "SELECT COUNT(*) FROM turns WHERE session = ? AND id <= ?"
    (number,) = connection.execute(query, (session, id_)).fetchone()
    return int(number)


def _turn(value: dict[str, Any]) -> Turn:
    # Sessions also had whether the ids spell the reply.
    ids, _ = value["ids"], value.pop("exact", None)
    ids = None if ids is None else np.frombuffer(b64decode(ids), "<i4").astype(np.int32)
    return Turn(**value | {"ids": ids, "later_thoughts": tuple(value["later_thoughts"])})


def is_same(one: Turn, other: Turn) -> bool:
    """Whether their rows are the same."""
    # Of thousands of turns, nearly all are unchanged.
    return one is other or _as_json(one) == _as_json(other)


def size_bytes(turn: Turn) -> int:
    texts = f"{turn.user}{turn.reply}{turn.thought}".encode("utf-8", "replace")
    return len(texts) + (0 if turn.ids is None else 4 * len(turn.ids))


# The index of words


def rebuild_indexes(connection: sqlite3.Connection) -> None:
    """From the tables, which do not change."""
    connection.execute("REINDEX")
    # An index that SQLite cannot open cannot be emptied either: first, make it look empty.
    connection.execute("DELETE FROM words_data")
    connection.execute("INSERT INTO words_data VALUES (1, x''), (10, zeroblob(7))")
    connection.execute("INSERT INTO words (words) VALUES ('delete-all')")
    for row in _rows(connection, "turns", "TRUE"):
        if row.value is not None:
            _index(connection, row.id, None, _turn(row.value))


def _index(
    connection: sqlite3.Connection, id_: int, before: Turn | None, after: Turn | None
) -> None:
    """Replace the words of a turn in the index."""
    old, new = (None if turn is None else _words(turn) for turn in (before, after))
    if old is not None and old != new:
        removal = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"
        connection.execute(removal, (id_, old))
    if new is not None and old != new:
        connection.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (id_, new))


def _words(turn: Turn) -> str:
    return " ".join(words(clean(f"{turn.reply}\n{turn.user}")[:INDEXED_CHARS]))


# The reply in progress


class ReplyFile:
    """For one reply after another, next to the database. Removed when a reply is in it.

    What is written there survives a kill of the process. Every quarter of a second a thread forces
    it to the disk, so that nothing waits for that. Each line is a piece, `[id of the turn's row,
    whether it is of the thought, text]`.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        self._bytes = 0
        self._waiting = b""
        self._forcing: threading.Thread | None = None
        self._forced_s = 0.0
        self._error: OSError | None = None

    def add(self, path: Path, turn: int, pieces: Iterable[Piece]) -> None:
        """Raises OSError, also one of an earlier piece; then the next call adds these, too."""
        lines = (json.dumps([turn, *piece], ensure_ascii=False) for piece in pieces)
        # Unpaired surrogates become question marks.
        self._waiting += "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        if self._descriptor < 0:
            self._descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            self._forced_s = time.monotonic()
        # At its place: after an interruption, it is written again.
        write_all(self._descriptor, self._waiting, self._bytes)
        self._bytes, self._waiting = self._bytes + len(self._waiting), b""
        error, self._error = self._error, None
        if error is not None:
            raise error
        is_forcing = self._forcing is not None and self._forcing.is_alive()
        if not is_forcing and time.monotonic() - self._forced_s >= FORCE_EVERY_S:
            self._forced_s = time.monotonic()
            # A descriptor of its own: the file may be closed meanwhile.
            self._forcing = threading.Thread(
                target=self._force, args=(os.dup(self._descriptor),), name="reply", daemon=True
            )
            self._forcing.start()

    def _force(self, descriptor: int) -> None:
        try:
            with os.fdopen(descriptor, "wb"):
                force_to_disk(descriptor)
        except OSError as error:
            self._error = error

    def remove(self, path: Path) -> None:
        """Also one that a killed process has left. One that stays is no longer than its turn."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._bytes, self._waiting = -1, 0, b""
        with suppress(OSError):
            path.unlink()


def reply_path(directory: Path, id_: int) -> Path:
    """Of the session with that id."""
    return directory / f"{id_}.reply"


def read_reply(path: Path) -> tuple[int, str, str] | None:
    """The turn, the thought and the reply; None without a file. A kill may have damaged the end."""
    try:
        with open_to_read(path) as file:
            *lines, _ = file.read(MAX_REPLY_BYTES).split(b"\n")
    except OSError:
        return None
    found: int | None = None
    texts: tuple[list[str], list[str]] = ([], [])
    for line in lines:
        try:
            piece = json.loads(line)
        except (ValueError, RecursionError):
            break
        match piece:
            case [int(turn), bool(of_thought), str(text)]:
                found = turn
                texts[of_thought].append(text)
            case _:
                break
    return None if found is None else (found, "".join(texts[True]), "".join(texts[False]))
