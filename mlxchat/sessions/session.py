"""A session: a chat saved as it goes, open in one process at a time.

A name belongs to the process that opened it, even before its first turn makes a row of it. What is
recorded is compared with what the database has, and only what has changed is written. `listing`
deals with all sessions together.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from itertools import count, zip_longest
from pathlib import Path
from typing import Self

from mlxchat import units
from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.files import Lock, make_private_directory, remove_unfinished
from mlxchat.sessions import backup, records
from mlxchat.sessions.database import LOCKS, Database, names_by_use, session_errors
from mlxchat.sessions.records import ReplyFile, Saved, Scalar, SessionRecord, reply_path

# On such a disk, a chat continues unsaved.
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


class Session(AbstractContextManager["Session"]):
    """A saved chat, its name locked for this process until `close`. `contents` were saved before.

    Made by `open` and `new`. A new session has no row until something is recorded. If `new` chose
    the name and it is taken by then, the name changes. A disk that cannot be written cannot lock
    either: then the session is locked before it is written.

    If it cannot be written, the first call to notice raises SessionError. Later calls try again
    silently, and `record` saves everything missing by then. `outage` is the reason as long as this
    lasts; `recovered` is whether the last call to `record` ended it.
    """

    def __init__(self, name: str, database: Database, *, chosen: bool = True) -> None:
        self.name = name
        self.contents = Saved()
        self.outage: str | None = None
        self.recovered = False
        self._database = database
        self._chosen = chosen
        self._lock: Lock | None = None
        # Of a row that may not be committed yet, unless it `_has_row`.
        self._id: int | None = None
        self._has_row = self._is_backed_up = False
        self._opened: SessionRecord | None = None
        self._stored = Saved()
        self._settings: dict[str, Scalar] = {}
        # The conversation's turns when it was recorded.
        self._turns: Sequence[Turn] = ()
        # The row whose reply is in the file.
        self._reply_file = ReplyFile()
        self._shown: int | None = None
        self._in_step = self._has_deleted = False

    @classmethod
    def open(cls, name: str, create: bool = False) -> Self:
        """Open a session to continue it; with `create`, start one if it does not exist.

        Raises SessionError: not found, invalid name, open elsewhere, damaged.
        """
        records.check_name(name)
        session = cls(name, Database())
        try:
            session._lock = _lock(session._database, name)
            record = (find if create else existing)(session._database, name)
            if record is not None:
                session._reopen(record)
        except BaseException:
            session.close()
            raise
        return session

    @classmethod
    def new(cls) -> Self:
        """Start a session named after the local time, whatever is wrong with the disk."""
        database = Database()
        for path in database.directory.glob(LOCKS):
            # Of a process that was killed.
            with suppress(OSError, SessionError):
                Lock(path, "").release()
        session = cls(next(_names()), database, chosen=False)
        with suppress(OSError):
            session._choose_name()
        return session

    @property
    def snapshot_path(self) -> Path | None:
        """The file for the state of its cache; None before the first turn."""
        return snapshot_path(self._database, self._id) if self._id and self._has_row else None

    @property
    def is_question(self) -> bool:
        return SessionRecord(self.name, settings=self._settings, turns=len(self._turns)).is_question

    @property
    def is_emptied(self) -> bool:
        """Whether all its turns were taken back, and it has no name, note or remembered line."""
        others = [self._settings.get(name) for name in (records.NOTE, records.REMEMBERED)]
        if self._turns or self._stored.lost or any(others) or self._stored is self.contents:
            return False
        return self._has_row and records.NAMED_BY_TIME.fullmatch(self.name) is not None

    @property
    def saved_turns(self) -> int:
        """How many turns are saved completely."""
        pairs = zip(self._stored.rows, self._turns, strict=False)
        return sum(records.is_same(row[1], turn) for row, turn in pairs)

    def record(self, system: str | None, turns: Sequence[Turn], **others: Scalar) -> None:
        """Save changes since the last call, settings too, and sync them. Raises SessionError."""
        self._settings |= others
        self.recovered, self._in_step = False, False
        self._turns = turns
        if not (self._has_row or turns or any(others.values())):
            self.outage = None
            return
        pairs = zip(self._stored.rows, turns, strict=False)
        rows = [row if records.is_same(row[1], turn) else (row[0], turn) for row, turn in pairs]
        rows += [(0, turn) for turn in turns[len(rows) :]]
        self._save(replace(self._stored, system=system, rows=rows))
        self._in_step = self.outage is None
        rows = self._stored.rows
        # Whether the file has the reply of the last turn, which goes on.
        goes_on = rows and rows[-1][0] == self._shown and not rows[-1][1].finish_reason
        if self._in_step and not goes_on:
            self._shown = None
            self._reply_file.remove(self._reply_path)

    def settings(self, values: Mapping[str, Scalar]) -> None:
        """Change settings. During an outage, the next `record` saves them. Raises SessionError."""
        self._settings |= values
        if self._has_row and self.outage is None:
            self._save(self._stored)

    def show(self, text: str, thought: bool = False) -> None:
        """Save more of the reply in progress, or of its thought, before it is shown: in a file,
        since waiting for the disk takes longer than a token. Raises SessionError.

        It belongs to the last recorded turn; without one, nothing is saved.
        """
        if not self._in_step or not self._stored.rows:
            return
        row, turn = self._stored.rows[-1]
        pieces = [(thought, text)]
        if self._shown is None:
            self._reply_file.remove(self._reply_path)
            self._shown = row
            pieces = [(True, turn.thought), (False, turn.reply), *pieces]
        try:
            self._reply_file.add(self._reply_path, row, pieces)
        except OSError as error:
            self._report(error)

    def rename(self, name: str) -> None:
        """Rename it while open. Raises SessionError, and keeps the old name."""
        records.check_name(name)
        lock = self._lock
        if records.folded(name) != records.folded(self.name):
            lock = _lock(self._database, name)
        try:
            found = find(self._database, name)
            if found is not None and found.id != self._id:
                raise records.already_exists(found.name)
            if self._has_row:
                with session_errors("rename the session"):
                    self._database.write(
                        lambda c: records.update_session(c, replace(self._row(c), name=name))
                    )
        except BaseException:
            if lock is not self._lock:
                _remove(lock)
            raise
        if lock is not self._lock:
            _remove(self._lock)
        self._lock = lock
        self._sign()
        self.name, self._chosen = name, True

    def delete(self) -> None:
        """Delete it permanently. Raises SessionError."""
        assert self._id is not None
        id_ = self._id
        with session_errors(f"remove session {self.name!r}"):
            snapshot_path(self._database, id_).unlink(missing_ok=True)
            self._reply_path.unlink(missing_ok=True)
            self._database.write(lambda connection: records.delete_session(connection, id_))

    def close(self) -> None:
        """Let others open it; delete it if it `is_emptied`."""
        if self.is_emptied:
            with suppress(SessionError):
                self.delete()
        _remove(self._lock)
        self._lock = None
        if self._has_deleted and self.outage is None:
            self._database.erase_deleted()
        self._database.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _reply_path(self) -> Path:
        assert self._id is not None
        return reply_path(self._database.directory, self._id)

    def _reopen(self, record: SessionRecord) -> None:
        self.name, self._id, self._has_row, self._opened = record.name, record.id, True, record
        self._sign()
        with session_errors(f"read session {self.name!r}"):
            self.contents = self._stored = self._database.read(
                lambda connection: read_contents(connection, self._database.directory, record),
                Saved(),
            )
        self._settings, self._turns = dict(self.contents.settings), self.contents.turns
        path = snapshot_path(self._database, record.id)
        remove_unfinished(path)
        with suppress(OSError):
            # The latest ones used are kept.
            os.utime(path)

    def _choose_name(self) -> None:
        """Raises OSError if nothing can be locked."""
        for name in _names():
            # Another one may have begun in the same second.
            with suppress(SessionError):
                lock = _taken(self._database, name)
                _remove(self._lock)
                self.name, self._lock = name, lock
                return

    def _sign(self) -> None:
        """Say which process has it open, and so needs the database as it is."""
        if self._lock is not None and self._id is not None:
            self._lock.sign()

    def _save(self, wanted: Saved) -> None:
        """Make the database what is `wanted`, with the settings. Raises SessionError, once."""
        stored = self._stored
        wanted = replace(wanted, settings=dict(self._settings))
        pairs = zip_longest(wanted.rows, stored.rows)
        same = (wanted.system, wanted.settings) == (stored.system, stored.settings)
        try:
            if not same or any(row is not before for row, before in pairs):
                self._stored = self._database.write(lambda c: self._write(c, wanted))
                self._has_row = True
                self.recovered = self.recovered or self.outage is not None
            # Or what could not be saved was taken back.
            self.outage = None
        except (OSError, SessionError) as error:
            self._report(error)

    def _row(self, connection: sqlite3.Connection) -> SessionRecord:
        assert self._id is not None
        session = records.session_with(connection, self._id)
        # Another session may have its number, in a database that began anew.
        if session is None or records.folded(session.name) != records.folded(self.name):
            self._stored = Saved()
            raise SessionError("the session no longer exists")
        return session

    def _write(self, connection: sqlite3.Connection, wanted: Saved) -> Saved:
        """Doing it twice does no harm: a commit can succeed just before an interruption."""
        id_ = self._begin(connection)
        session = self._row(connection)
        before = dict(self._stored.rows)
        records.delete_turns(connection, "session = ? AND id > ?", (id_, self._stored.last))
        gone = before.keys() - {row for row, _ in wanted.rows}
        for row in gone:
            records.delete_turns(connection, "id = ?", (row,))
        rows: list[tuple[int, Turn]] = []
        for row, turn in wanted.rows:
            if row == 0:
                rows.append((records.insert_turn(connection, id_, turn), turn))
                continue
            if turn is not before[row]:
                records.update_turn(connection, row, id_, turn)
                if not turn.reply.startswith(before[row].reply):
                    gone.add(row)
            rows.append((row, turn))
        self._has_deleted = self._has_deleted or bool(gone)
        turns = [turn for _, turn in rows]
        changed = replace(
            session,
            updated=time.time(),
            system=wanted.system,
            settings=wanted.settings,
            turns=len(turns) + wanted.lost,
            forgotten=sum(turn.forgotten for turn in turns),
            bytes=sum(map(records.size_bytes, turns)),
            first=turns[0].question[: records.FIRST_CHARS] if turns else "",
        )
        records.update_session(connection, changed)
        return replace(wanted, rows=rows, last=max([wanted.last, *(row for row, _ in rows)]))

    def _begin(self, connection: sqlite3.Connection) -> int:
        """Insert the session, unless it has a row, and lock it; return its id. Raises OSError,
        SessionError; can be called again if the transaction fails."""
        if not self._is_backed_up:
            self._is_backed_up = True
            backup.start_if_due(connection, self._database.path)
        found = None if self._id is None else records.session_with(connection, self._id)
        if self._lock is None:
            # The disk could not be written when it was opened.
            lock = _taken(self._database, self.name)
            if self._has_row and found != self._opened:
                lock.release()
                raise SessionError("another process has changed it")
            self._lock = lock
        if not self._has_row and (found is None or found.name != self.name):
            self._id = self._inserted(connection)
        self._sign()
        assert self._id is not None
        return self._id

    def _inserted(self, connection: sqlite3.Connection) -> int:
        while True:
            record = SessionRecord(self.name, created=time.time())
            try:
                id_ = records.insert_session(connection, record)
            except sqlite3.IntegrityError:
                if self._chosen:
                    message = f"another process has started session {self.name!r}"
                    raise SessionError(message) from None
                self._choose_name()
                continue
            # Of another database.
            snapshot_path(self._database, id_).unlink(missing_ok=True)
            # The user has seen the name: it changed only if it was taken.
            self._chosen = True
            return id_

    def _report(self, error: OSError | SessionError) -> None:
        if self.outage is not None:
            return
        self.outage = str(getattr(error, "strerror", None) or error)
        raise SessionError(
            f"cannot save this session in {self._database.directory}: {self.outage}: "
            "the chat continues unsaved"
        ) from error


def read_contents(connection: sqlite3.Connection, directory: Path, session: SessionRecord) -> Saved:
    """What was saved of a session, what is damaged left out and named in a notice."""
    rows, damaged = records.turns_of(connection, session.id)
    missing = max(0, session.turns - len(rows) - len(damaged))
    name = f"session {session.name!r}"
    lines, kept = session.settings.get(records.REMEMBERED), Saved(settings=session.settings)
    notices = [
        *([f"the system prompt and the settings of {name} are damaged"] * session.damaged),
        *([f"the remembered lines of {name} are damaged"] * bool(lines and not kept.remembered)),
        *(
            f"turn {records.number_of(connection, session.id, id_)} of {name} is damaged and is "
            "left out"
            for id_ in damaged
        ),
        *([f"{name} lacks {units.count(missing, 'turn')}"] * bool(missing)),
    ]
    turns = [turn for _, turn in rows]
    shown = records.read_reply(reply_path(directory, session.id))
    if shown is not None and rows and shown[0] == rows[-1][0]:
        last, turns[-1] = turns[-1], _with_shown(turns[-1], *shown[1:])
        if turns[-1] is not last and session.open_in is None:
            notices.append("the last reply was interrupted: kept what had been shown")
    last = max([0, *(id_ for id_, _ in rows), *damaged])
    lost = len(damaged) + missing
    return Saved(session.system, turns, session.settings, tuple(notices), rows, last, lost)


def _with_shown(turn: Turn, thought: str, reply: str) -> Turn:
    """The turn with what was shown of its reply, unless that is less, as after a power cut."""
    more = len(thought) + len(reply) - len(turn.thought) - len(turn.reply)
    if more < 0 or (more == 0 and turn.finish_reason):
        return turn
    return replace(turn, thought=thought, reply=reply, finish_reason="interrupted", ids=None)


def find(database: Database, name: str) -> SessionRecord | None:
    """The session of that name, whatever its case. Raises SessionError."""
    with session_errors("read the sessions"):
        return database.read(lambda connection: records.session_named(connection, name), None)


def existing(database: Database, name: str) -> SessionRecord:
    """Raises SessionError for an invalid name, and for a missing session."""
    records.check_name(name)
    if (found := find(database, name)) is None:
        near = get_close_matches(name, names_by_use(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SessionError(f"no session named {name!r}{hint}")
    return found


def lock_path(database: Database, name: str) -> Path:
    digest = hashlib.sha256(records.folded(name).encode()).hexdigest()[:16]
    return database.directory / LOCKS.replace("*", digest)


def snapshot_path(database: Database, id_: int) -> Path:
    return database.directory / f"{id_}.safetensors"


def _lock(database: Database, name: str) -> Lock | None:
    """The lock; None on a disk that cannot be written. Raises SessionError."""
    with session_errors(f"open session {name!r}"):
        try:
            return _taken(database, name)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            return None


def _taken(database: Database, name: str) -> Lock:
    """The lock of a name. Raises SessionError if another process has it, OSError."""
    make_private_directory(database.directory)
    return Lock(lock_path(database, name), f"session {name!r}")


def _remove(lock: Lock | None) -> None:
    if lock is not None:
        lock.release()


def _names() -> Iterator[str]:
    """Endless names made from the local time."""
    name = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    yield name
    for n in count(2):
        yield f"{name}-{n}"
