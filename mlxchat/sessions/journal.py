"""A conversation in the database, kept up to date by writing what has changed.

`session` decides which row it is and who may write it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlxchat.chat.turn import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions import records
from mlxchat.sessions.database import Database
from mlxchat.sessions.records import SessionRecord
from mlxchat.sessions.reply_file import ReplyFile, read_reply, reply_path
from mlxchat.sessions.saved import NOTE, Saved, Scalar
from mlxchat.units import count

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """A turn as the database has it in the row `id`: 0 if it has none yet."""

    id: int
    turn: Turn

    def has(self, turn: Turn) -> bool:
        # Of thousands of turns, nearly all are unchanged.
        return turn is self.turn or records.turn_columns(0, turn) == records.turn_columns(
            0, self.turn
        )


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the database has. Replaced as a whole, so that an interruption does no harm.

    `last` is the latest row that the session had, `lost` how many turns are damaged or missing.
    """

    system: str | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    rows: tuple[_Recorded, ...] = ()
    last: int = 0
    lost: int = 0

    def with_turns(self, turns: Sequence[Turn]) -> _Stored:
        """What it should have: a row for each turn, those that are there already first."""
        rows = [
            row if row.has(turn) else replace(row, turn=turn)
            for row, turn in zip(self.rows, turns, strict=False)
        ]
        rows += [_Recorded(0, turn) for turn in turns[len(rows) :]]
        return self if rows == list(self.rows) else replace(self, rows=tuple(rows))


class Journal:
    """A conversation in a session. `begin` gets its id, if it has one, and returns it: it inserts a
    new one, and makes sure that it is locked. `contents` is what was saved when it was opened.

    If it cannot be written, the first call to notice raises SessionError. Later calls try again
    silently, and `record` saves everything missing by then. `outage` is the reason as long as this
    lasts; `recovered` is whether the last call to `record` ended it.
    """

    def __init__(
        self,
        database: Database,
        begin: Callable[[sqlite3.Connection, int | None], int],
        session: SessionRecord | None = None,
    ) -> None:
        self.outage: str | None = None
        self.recovered = False
        self._database = database
        self._begin = begin
        self._id = None if session is None else session.id
        self.contents, self._stored = Saved(), _Stored()
        if session is not None:
            self.contents, self._stored = database.read(
                lambda c: read_contents(c, database.directory, session)
            )
        self._settings = dict(self.contents.settings)
        # The conversation's turns when it was recorded.
        self._turns: Sequence[Turn] = self.contents.turns
        self._reply_file = ReplyFile()
        # The row whose reply is in the file, and the last reply when it was recorded.
        self._shown: int | None = None
        self._so_far = ("", "")
        self._in_step = self._is_gone = False

    def record(self, system: str | None, turns: Sequence[Turn], note: str | None = None) -> None:
        """Save every change since the last call, and force it to the disk. Raises SessionError."""
        if note != self._settings.get(NOTE):
            self._settings[NOTE] = note
        self.recovered, self._in_step = False, False
        self._turns = turns
        self._so_far = (turns[-1].thought, turns[-1].reply) if turns else ("", "")
        if self._id is None and not turns:
            self.outage = None
            return
        self._save(replace(self._stored.with_turns(turns), system=system))
        self._in_step = self.outage is None
        if self._in_step and not self._is_in_progress:
            assert self._id is not None
            self._shown = None
            self._reply_file.remove(reply_path(self._database.directory, self._id))

    def settings(self, values: Mapping[str, Scalar]) -> None:
        """Change some of the settings. During an outage, the next `record` saves them. Raises
        SessionError."""
        self._settings |= values
        if self._id is not None and self.outage is None:
            self._save(self._stored)

    def show(self, text: str, thought: bool = False) -> None:
        """Save more of the reply in progress, or of its thought, before it is shown: in a file,
        since waiting for the disk takes longer than a token. Raises SessionError.

        It belongs to the last recorded turn; without one, nothing is saved.
        """
        if not self._in_step or not self._stored.rows:
            return
        assert self._id is not None
        path, turn = reply_path(self._database.directory, self._id), self._stored.rows[-1].id
        pieces = [(thought, text)]
        if self._shown is None:
            self._reply_file.remove(path)
            self._shown = turn
            pieces = [(True, self._so_far[0]), (False, self._so_far[1]), *pieces]
        try:
            self._reply_file.add(path, turn, pieces)
        except OSError as error:
            self._report(error)

    @property
    def saved_turns(self) -> int:
        """How many turns are saved completely."""
        rows = zip(self._stored.rows, self._turns, strict=False)
        return 0 if self._is_gone else sum(row.has(turn) for row, turn in rows)

    @property
    def serials(self) -> list[int]:
        """The numbers by which other files may refer to the recorded turns."""
        return [row.id for row in self._stored.rows]

    @property
    def _is_in_progress(self) -> bool:
        """Whether the file has the reply of the last turn, which goes on."""
        last = self._stored.rows[-1:]
        return bool(last) and last[0].id == self._shown and not last[0].turn.finish_reason

    def _save(self, wanted: _Stored) -> None:
        """Make the database what is `wanted`, with the settings. Raises SessionError if that fails
        and nobody knows yet."""
        if wanted.settings != self._settings:
            wanted = replace(wanted, settings=dict(self._settings))
        try:
            if wanted != self._stored:
                self._id, self._stored = self._database.write(lambda c: self._write(c, wanted))
                self.recovered = self.recovered or self.outage is not None
            # Or what could not be saved was taken back.
            self.outage = None
        except (OSError, SessionError) as error:
            self._report(error)

    def _write(self, connection: sqlite3.Connection, wanted: _Stored) -> tuple[int, _Stored]:
        """Doing it twice does no harm: a commit can succeed just before an interruption."""
        id_ = self._begin(connection, self._id)
        session = records.session_with(connection, id_)
        if session is None:
            self._is_gone = True
            raise SessionError("the session no longer exists")
        before = {row.id: row for row in self._stored.rows}
        records.delete_turns(connection, "session = ? AND id > ?", (id_, self._stored.last))
        for gone in before.keys() - {row.id for row in wanted.rows}:
            records.delete_turns(connection, "id = ?", (gone,))
        rows: list[_Recorded] = []
        for row in wanted.rows:
            if row.id == 0:
                rows.append(replace(row, id=records.insert_turn(connection, id_, row.turn)))
                continue
            if row is not before[row.id]:
                records.update_turn(connection, row.id, id_, row.turn)
            rows.append(row)
        turns = [row.turn for row in rows]
        changed = replace(
            session,
            updated=records.now(),
            system=wanted.system,
            settings=wanted.settings,
            turns=len(turns) + wanted.lost,
            forgotten=sum(turn.forgotten for turn in turns),
            text_bytes=sum(map(records.size_bytes, turns)),
            first=records.beginning(turns),
        )
        records.update_session(connection, changed)
        last = max([wanted.last, *(row.id for row in rows)])
        return id_, replace(wanted, rows=tuple(rows), last=last)

    def _report(self, error: OSError | SessionError) -> None:
        if self.outage is not None:
            return
        self.outage = str(getattr(error, "strerror", None) or error)
        raise SessionError(
            f"cannot save this session: {self.outage}: the chat continues unsaved"
        ) from error


def read_contents(
    connection: sqlite3.Connection, directory: Path, session: SessionRecord
) -> tuple[Saved, _Stored]:
    """What was saved of a session, what is damaged left out and named in a notice."""
    found, damaged = records.turns_of(connection, session.id)
    missing = max(0, session.turns - len(found) - len(damaged))
    notices: list[str] = []
    if session.damaged:
        notices.append(
            f"the system prompt and the settings of session {session.name!r} are damaged"
        )
    for id_ in damaged:
        number = records.number_of(connection, session.id, id_)
        notices.append(f"turn {number} of session {session.name!r} is damaged and is left out")
    if missing:
        notices.append(f"session {session.name!r} lacks {count(missing, 'turn')}")
    rows = tuple(_Recorded(id_, turn) for id_, turn in found)
    stored = _Stored(
        session.system,
        dict(session.settings),
        rows,
        last=max([0, *(row.id for row in rows), *damaged]),
        lost=len(damaged) + missing,
    )
    shown = read_reply(reply_path(directory, session.id))
    turns = [row.turn for row in rows]
    if shown is not None and rows and shown[0] == rows[-1].id:
        last, turns[-1] = turns[-1], _with_shown(turns[-1], *shown[1:])
        if turns[-1] is not last:
            notices.append("the last reply was interrupted: kept what had been shown")
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
