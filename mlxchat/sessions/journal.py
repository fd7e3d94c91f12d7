"""A conversation in the database, kept up to date by writing what has changed.

`session` decides which row it is and who may write it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from mlxchat.chat.turn import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions import records
from mlxchat.sessions.database import Database
from mlxchat.sessions.records import SessionRecord
from mlxchat.sessions.reply_file import ReplyFile, read_reply, reply_path
from mlxchat.sessions.saved import NOTE, Saved, Scalar
from mlxchat.units import count

# How often the reply in progress goes to the database, too.
PIECES_EVERY_S = 0.25
INTERRUPTED = "interrupted"
# Fields of a turn that can change; the user's text cannot.
_CAN_CHANGE = [each.name for each in fields(Turn) if each.name not in ("user", "time")]


@dataclass(frozen=True, slots=True)
class _SavedTurn:
    """A turn of the conversation, and a copy of it as the database has it in the row `id`."""

    serial: int
    turn: Turn
    saved: Turn
    size_bytes: int
    id: int = 0


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the database has. Replaced as a whole, so that an interruption does no harm.

    `lost` is how many turns are damaged there, or missing.
    """

    last_serial: int = 0
    system: str | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    entries: tuple[_SavedTurn, ...] = ()
    lost: int = 0


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
        self.contents, self._written = Saved(), _Stored()
        if session is not None:
            self.contents, self._written = database.read(
                lambda c: read_contents(c, database.directory, session)
            )
        self._settings = dict(self.contents.settings)
        self._serials: dict[int, int] | None = None
        # The last reply, after its thought, as it was when it began or was continued.
        self._so_far = ("", "")
        self._unfinished: int | None = None
        # All of its pieces, and when they were last saved in the database.
        self._pieces: list[tuple[bool, str]] = []
        self._saved_s = 0.0
        self._reply_file = ReplyFile()
        self._in_step = self._is_gone = False

    def record(self, system: str | None, turns: Sequence[Turn], note: str | None = None) -> None:
        """Save every change since the last call, and force it to the disk. A reply in
        progress is recorded later. Raises SessionError."""
        if note != self._settings.get(NOTE):
            self._settings[NOTE] = note
        self.recovered, self._in_step = False, False
        self._so_far = (turns[-1].thought, turns[-1].reply) if turns else ("", "")
        if self._id is None and not turns:
            self.outage = None
            return
        ended = not self._is_being_written(turns)
        changes = _Edits(self._written, system=system, settings=self._settings)
        changes.turns(turns, self._unfinished if ended else None)
        error = self._save(changes, ended)
        self._in_step = error is None
        if self._in_step and ended and self._id is not None:
            self._unfinished = None
            self._reply_file.remove(reply_path(self._database.directory, self._id))
        self._report(error)

    def settings(self, values: Mapping[str, Scalar]) -> None:
        """Change some of the settings. During an outage, the next `record` saves them. Raises
        SessionError."""
        self._settings |= values
        if self._id is not None and self.outage is None:
            changes = _Edits(self._written, system=self._written.system, settings=self._settings)
            self._report(self._save(changes, ended=False))

    def show(self, text: str, thought: bool = False) -> None:
        """Save more of the reply in progress, or of its thought, before it is shown: in a file, and
        every quarter of a second in the database. Raises SessionError.

        It belongs to the last recorded turn; without one, nothing is saved.
        """
        if not self._in_step or not self._written.entries:
            return
        assert self._id is not None
        path = reply_path(self._database.directory, self._id)
        if self._unfinished is None:
            self._reply_file.remove(path)
            self._saved_s = time.monotonic()
            self._pieces = [(True, self._so_far[0]), (False, self._so_far[1])]
            self._unfinished = self._written.entries[-1].serial
        self._pieces.append((thought, text))
        try:
            self._reply_file.write(path, self._unfinished, self._pieces)
            is_due = time.monotonic() - self._saved_s >= PIECES_EVERY_S
        except OSError:
            is_due = True
        if is_due and self.outage is None:
            self._save_so_far(self._id)

    def _save_so_far(self, id_: int) -> None:
        entry = self._written.entries[-1]
        thought, reply = (
            "".join(text for of_thought, text in self._pieces if of_thought is kind)
            for kind in (True, False)
        )
        turn = replace(entry.saved)
        _interrupt(turn, thought, reply)
        try:
            self._database.write(
                lambda c: records.update_turn(c, entry.id, id_, entry.serial, turn), forced=False
            )
            self._saved_s = time.monotonic()
        except (OSError, SessionError) as error:
            self._report(error)

    @property
    def saved_turns(self) -> int:
        """How many turns are saved completely."""
        return 0 if self._is_gone else sum(map(_is_as_saved, self._written.entries))

    def serial_of(self, turn: Turn) -> int | None:
        """The number by which other files may refer to the turn; None if it is not recorded."""
        if self._serials is None:
            self._serials = {id(each.turn): each.serial for each in self._written.entries}
        return self._serials.get(id(turn))

    def turn_of(self, serial: int) -> Turn | None:
        entries = self._written.entries
        return next((each.turn for each in entries if each.serial == serial), None)

    def _is_being_written(self, turns: Sequence[Turn]) -> bool:
        """Whether the last reply is in progress, and its pieces are part of it."""
        if not turns or turns[-1].finish_reason or not self._written.entries:
            return False
        last = self._written.entries[-1]
        return last.turn is turns[-1] and self._unfinished == last.serial

    def _save(self, changes: _Edits, ended: bool) -> OSError | SessionError | None:
        """Write the changes. If this succeeds, replace `_written`."""
        if changes.after is not self._written:
            try:
                id_, after = self._database.write(lambda c: self._write(c, changes))
            except (OSError, SessionError) as raised:
                return raised
            self._id, self._written, self._serials = id_, after, None
            self.recovered, self.outage = self.outage is not None, None
        elif ended:
            # What could not be saved was taken back.
            self.outage = None
        return None

    def _write(self, connection: sqlite3.Connection, changes: _Edits) -> tuple[int, _Stored]:
        id_ = self._begin(connection, self._id)
        session = records.session_with(connection, id_)
        if session is None:
            self._is_gone = True
            raise SessionError("the session no longer exists")
        after = changes.apply(connection, id_)
        turns = [entry.turn for entry in after.entries]
        changed = replace(
            session,
            updated=records.now(),
            system=after.system,
            settings=after.settings,
            last_serial=after.last_serial,
            turns=len(turns) + after.lost,
            forgotten=sum(turn.forgotten for turn in turns),
            text_bytes=sum(entry.size_bytes for entry in after.entries),
            first=records.beginning(turns),
        )
        records.update_session(connection, changed)
        return id_, after

    def _report(self, error: OSError | SessionError | None) -> None:
        if error is None or self.outage is not None:
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
    serials = [serial for _, serial, _ in found]
    missing = max(0, session.turns - len(found) - len(damaged))
    notices: list[str] = []
    if session.damaged:
        notices.append(
            f"the system prompt and the settings of session {session.name!r} are damaged"
        )
    for serial in damaged:
        number = records.number_of(connection, session.id, serial)
        notices.append(f"turn {number} of session {session.name!r} is damaged and is left out")
    if missing:
        notices.append(f"session {session.name!r} lacks {count(missing, 'turn')}")
    turns = [turn for _, _, turn in found]
    saved = Saved(session.system, turns, serials, dict(session.settings), tuple(notices))
    written = _Stored(
        last_serial=max([session.last_serial, *serials, *damaged]),
        system=saved.system,
        settings=dict(saved.settings),
        entries=tuple(
            _SavedTurn(serial, turn, replace(turn), records.size_bytes(turn), id_)
            for id_, serial, turn in found
        ),
        lost=len(damaged) + missing,
    )
    shown = read_reply(reply_path(directory, session.id))
    if shown is not None:
        _add_unfinished(saved, *shown)
    return saved, written


def _add_unfinished(saved: Saved, serial: int, thought: str, reply: str) -> None:
    """Replace the last reply with what was shown of it, unless less than the database has: a power
    cut can have damaged the file."""
    if not saved.turns or serial != saved.serials[-1]:
        return
    turn = saved.turns[-1]
    more = len(thought) + len(reply) - len(turn.thought) - len(turn.reply)
    if more < 0 or (more == 0 and turn.finish_reason != INTERRUPTED):
        return
    _interrupt(turn, thought, reply)
    saved.notices += ("the last reply was interrupted: kept what had been shown",)


def _interrupt(turn: Turn, thought: str, reply: str) -> None:
    """Make it a turn of which this much has been shown."""
    turn.thought, turn.reply, turn.finish_reason = thought, reply, INTERRUPTED
    turn.ids, turn.exact = None, False


class _Edits:
    """What brings the database up to date."""

    def __init__(
        self, written: _Stored, *, system: str | None, settings: Mapping[str, Scalar]
    ) -> None:
        self._before = self.after = written
        if (system, settings) != (written.system, written.settings):
            self.after = replace(written, system=system, settings=dict(settings))
        self._undone: list[_SavedTurn] = []
        self._rewritten: list[_SavedTurn] = []
        self._new: list[_SavedTurn] = []

    def turns(self, turns: Sequence[Turn], shown: int | None) -> None:
        """`shown` is the turn of which the database may have a part of the reply."""
        entries: list[_SavedTurn] = []
        n = 0
        # Of thousands of turns, nearly all are unchanged, which comparing identities shows.
        for entry in self._before.entries:
            if n == len(turns) or entry.turn is not turns[n]:
                self._undone.append(entry)
                continue
            n += 1
            was_shown = entry.serial == shown
            is_same = _is_as_saved(entry) and not was_shown
            entries.append(entry if is_same else self._changed(entry, n == len(turns), was_shown))
        serials = range(self.after.last_serial + 1, self.after.last_serial + 1 + len(turns) - n)
        self._new = [
            _SavedTurn(serial, turn, replace(turn), records.size_bytes(turn))
            for serial, turn in zip(serials, turns[n:], strict=True)
        ]
        if self._undone or self._rewritten or self._new:
            last_serial = self.after.last_serial + len(self._new)
            self.after = replace(
                self.after, entries=(*entries, *self._new), last_serial=last_serial
            )

    def apply(self, connection: sqlite3.Connection, session: int) -> _Stored:
        """Write everything; return what the database then has. Doing it twice does no harm: a
        commit can succeed just before an interruption."""
        records.delete_turns(
            connection, "session = ? AND serial > ?", (session, self._before.last_serial)
        )
        for entry in self._undone:
            records.delete_turns(connection, "id = ?", (entry.id,))
        for entry in self._rewritten:
            records.update_turn(connection, entry.id, session, entry.serial, entry.saved)
        inserted = [
            replace(entry, id=records.insert_turn(connection, session, entry.serial, entry.saved))
            for entry in self._new
        ]
        unchanged = self.after.entries[: len(self.after.entries) - len(inserted)]
        return replace(self.after, entries=(*unchanged, *inserted))

    def _changed(self, entry: _SavedTurn, is_last: bool, was_shown: bool) -> _SavedTurn:
        turn, saved = entry.turn, entry.saved
        if is_last and not turn.finish_reason:
            changed = replace(saved, forgotten=turn.forgotten, pinned=turn.pinned)
        else:
            changed = replace(turn)
        after = replace(entry, saved=changed, size_bytes=records.size_bytes(changed))
        if was_shown or records.turn_columns(0, 0, saved) != records.turn_columns(0, 0, changed):
            self._rewritten.append(after)
        return after


def _is_as_saved(entry: _SavedTurn) -> bool:
    return all(getattr(entry.turn, name) is getattr(entry.saved, name) for name in _CAN_CHANGE)
