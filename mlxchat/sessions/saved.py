"""Conversations as they are saved in the database, and in files: what `/export` writes.

A file is JSON Lines, each a message with `role` and `content`; a reply may have
`reasoning_content`, and the note on forgotten turns is a system message with the name "note".
Nothing in a file is trusted.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlxchat import units
from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.files import open_to_read, reported_as
from mlxchat.sessions import records
from mlxchat.sessions.records import Scalar, SessionRecord
from mlxchat.sessions.reply_file import read_reply, reply_path

MAX_BYTES = 1 << 30
MAX_TIME_CHARS = 40
# The setting that is the note, and the name of its message in a file.
NOTE = "note"

INTERRUPTED = "interrupted"


@dataclass(slots=True)
class Saved:
    """A conversation as it was saved; `notices` name what is missing."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list[Turn])
    settings: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    notices: tuple[str, ...] = ()

    @property
    def note(self) -> str | None:
        """The note on forgotten turns."""
        note = self.settings.get(NOTE)
        return note if isinstance(note, str) and note else None


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """What the database has: each turn with the id of its row, 0 if it is to have one. Replaced as
    a whole, so that an interruption does no harm.

    `last` is the latest row that the session had, `lost` how many turns are damaged or missing.
    """

    system: str | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    rows: tuple[tuple[int, Turn], ...] = ()
    last: int = 0
    lost: int = 0

    def with_turns(self, system: str | None, turns: Sequence[Turn]) -> Stored:
        """With a row for each of these turns, those that are there already first."""
        rows = [
            row if records.is_same(row[1], turn) else (row[0], turn)
            for row, turn in zip(self.rows, turns, strict=False)
        ]
        rows += [(0, turn) for turn in turns[len(rows) :]]
        return replace(self, system=system, rows=tuple(rows))


def read_contents(
    connection: sqlite3.Connection, directory: Path, session: SessionRecord
) -> tuple[Saved, Stored]:
    """What was saved of a session, what is damaged left out and named in a notice."""
    rows, damaged = records.turns_of(connection, session.id)
    missing = max(0, session.turns - len(rows) - len(damaged))
    name = f"session {session.name!r}"
    notices = [
        *([f"the system prompt and the settings of {name} are damaged"] * session.damaged),
        *(
            f"turn {records.number_of(connection, session.id, id_)} of {name} is damaged and is "
            "left out"
            for id_ in damaged
        ),
        *([f"{name} lacks {units.count(missing, 'turn')}"] * bool(missing)),
    ]
    turns = [turn for _, turn in rows]
    shown = read_reply(reply_path(directory, session.id))
    if shown is not None and rows and shown[0] == rows[-1][0]:
        last, turns[-1] = turns[-1], _with_shown(turns[-1], *shown[1:])
        if turns[-1] is not last:
            notices.append("the last reply was interrupted: kept what had been shown")
    last_row = max([0, *(id_ for id_, _ in rows), *damaged])
    stored = Stored(session.system, session.settings, tuple(rows), last_row, len(damaged) + missing)
    return Saved(session.system, turns, dict(session.settings), tuple(notices)), stored


def _with_shown(turn: Turn, thought: str, reply: str) -> Turn:
    """The turn with what was shown of its reply, unless that is less: a power cut can have damaged
    the file."""
    more = len(thought) + len(reply) - len(turn.thought) - len(turn.reply)
    if more < 0 or (more == 0 and turn.finish_reason):
        return turn
    return replace(
        turn, thought=thought, reply=reply, finish_reason=INTERRUPTED, ids=None, exact=False
    )


def read_messages(path: Path) -> Saved:
    """Read a conversation for a new one. Raises SessionError, naming the file and the line."""
    saved = Saved()
    with reported_as(SessionError, f"read {path}"), open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise SessionError(f"{path} is too large to be a conversation")
        for number, line in enumerate(file, start=1):
            try:
                _add(saved, _parsed(line))
            except ValueError as error:
                raise SessionError(f"{path}, line {number}: {error}") from error
    return saved


def _parsed(line: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict):
            return message
    raise ValueError("not a message in JSON; `mlxchat help sessions` says what can be read")


def _add(saved: Saved, line: dict[str, Any]) -> None:
    """Add a message. Raises ValueError."""
    role, content = line.get("role"), _text(line.get("content"))
    last = saved.turns[-1] if saved.turns else None
    if role == "system" and line.get("name") == NOTE:
        saved.settings[NOTE] = content
    elif role == "system":
        saved.system = content
    elif role == "user":
        time = _text(line.get("time") or "")
        saved.turns.append(Turn(content, time=time[:MAX_TIME_CHARS]))
    elif role != "assistant":
        raise ValueError("not a message of a user, an assistant or the system")
    elif last is None or last.reply or last.thought:
        raise ValueError("a reply without a message")
    else:
        thought = _text(line.get("reasoning_content") or "")
        saved.turns[-1] = replace(last, reply=content, thought=thought)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a text is missing")  # noqa: TRY004
    # JSON can encode an unpaired surrogate, which no tokenizer accepts.
    return value.encode("utf-8", "replace").decode()
