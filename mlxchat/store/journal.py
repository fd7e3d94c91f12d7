"""A conversation's transcript on the disk. It is kept up to date by appending the differences.

Nothing in the file is ever changed. `saved` defines and reads its lines; `session` decides where it
is and who may write it.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mlxchat.about import __version__
from mlxchat.chat.turn import Turn
from mlxchat.errors import SessionError
from mlxchat.files import AppendFile
from mlxchat.store import unfinished_reply
from mlxchat.store.saved import FORMAT, VERSION, Saved, Scalar, add_unfinished, replay
from mlxchat.store.unfinished_reply import UnfinishedReply

Line = dict[str, Any]

# Fields of a turn that can change; the user's text cannot.
_CAN_CHANGE = (
    "reply",
    "thought",
    "later_thoughts",
    "ids",
    "forgotten",
    "pinned",
    "exact",
    "finish_reason",
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A turn of the conversation, and a copy of it as the file has it."""

    serial: int
    turn: Turn
    saved: Turn


@dataclass(frozen=True, slots=True)
class _Written:
    """The contents of the file. Replaced as a whole, so that an interruption does no harm.

    The last of the good bytes may be `unforced`: written, but perhaps not on the disk.
    """

    good_bytes: int = 0
    unforced: bytes = b""
    ends_line: bool = True
    last_serial: int = 0
    system: str | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    entries: tuple[_Entry, ...] = ()


class Journal:
    """The file at `path`. `contents` is what was in it when it was opened.

    If it cannot be written, the first call to notice raises SessionError. Later calls try again
    silently, and `record` saves everything missing by then. `recovered` is whether the last call
    to `record` ended such an outage.
    """

    def __init__(
        self, path: Path, contents: Saved, prepare: Callable[[], Path] | None = None
    ) -> None:
        self.contents = contents
        self.recovered = False
        self._prepare = prepare
        self._file = AppendFile(path, contents.size_bytes)
        self._unfinished = UnfinishedReply(path.with_name(unfinished_reply.NAME))
        self._settings = dict(contents.settings)
        self._written = _as_written(contents)
        self._serials: dict[int, int] | None = None
        # The last reply, after its thought, as it was when it began or was continued.
        self._so_far = ("", "")
        self._in_step = False
        self._has_reported = False

    @classmethod
    def create(
        cls,
        path: Path,
        settings: Mapping[str, Scalar] | None = None,
        prepare: Callable[[], Path] | None = None,
    ) -> "Journal":
        """A new journal, private to its owner. Nothing is created until there is a turn to record;
        then `prepare` is called to create the directory and return the file's path."""
        journal = cls(path, Saved(), prepare or (lambda: path))
        journal._settings |= settings or {}
        return journal

    @classmethod
    def open(cls, path: Path) -> "Journal":
        """Read the journal at `path`, to continue it. Raises SessionError.

        A line or a reply that a kill cut short is repaired by the first `record`, not before.
        """
        journal = cls(path, replay(path))
        add_unfinished(journal.contents, journal._unfinished.path)
        return journal

    @property
    def path(self) -> Path:
        return self._file.path

    def record(self, system: str | None, turns: Sequence[Turn]) -> None:
        """Append every change since the last call, and force it to the disk. A reply in
        progress is recorded later. Raises SessionError."""
        self.recovered, self._in_step = False, False
        self._so_far = (turns[-1].thought, turns[-1].reply) if turns else ("", "")
        if self._prepare is not None and not turns:
            return
        changes = _Changes(self._written)
        changes.settings(self._settings)
        changes.system(system)
        changes.turns(turns)
        before = self._written
        error = self._save(changes)
        self._in_step = self._written is not before
        if self._in_step and not self._is_being_written(turns):
            self._unfinished.remove()
        self._report(self._file.path, error)

    def settings(self, values: Mapping[str, Scalar]) -> None:
        """Change some of the settings. During an outage, the next `record` saves them. Raises
        SessionError."""
        self._settings |= values
        if self._prepare is None and not self._has_reported:
            changes = _Changes(self._written)
            changes.settings(self._settings)
            self._report(self._file.path, self._save(changes))

    def show(self, text: str, thought: bool = False) -> None:
        """Save more of the reply in progress, or of its thought, before it is shown. Raises
        SessionError.

        It belongs to the last recorded turn; without one, nothing is saved.
        """
        if not self._in_step or not self._written.entries:
            return
        try:
            if self._unfinished.serial is None:
                self._unfinished.begin(self._written.entries[-1].serial, *self._so_far)
            self._unfinished.add(text, thought)
        except OSError as error:
            self._report(self._unfinished.path, error)

    def serial_of(self, turn: Turn) -> int | None:
        """The number by which other files may refer to the turn; None if it is not recorded."""
        if self._serials is None:
            self._serials = {id(each.turn): each.serial for each in self._written.entries}
        return self._serials.get(id(turn))

    def turn_of(self, serial: int) -> Turn | None:
        entries = self._written.entries
        i = bisect_left(entries, serial, key=lambda entry: entry.serial)
        return entries[i].turn if i < len(entries) and entries[i].serial == serial else None

    def move(self, path: Path) -> None:
        """Continue at another path, which the file has been moved to."""
        self._file.path, self._unfinished.path = path, path.with_name(unfinished_reply.NAME)

    def close(self) -> None:
        """Close it. Writes nothing: everything recorded is on the disk."""
        self._unfinished.close()

    def _is_being_written(self, turns: Sequence[Turn]) -> bool:
        """Whether the last reply is in progress, and the unfinished reply's file is part of it."""
        if not turns or turns[-1].finish_reason:
            return False
        return self._unfinished.serial == self._written.entries[-1].serial

    def _save(self, changes: "_Changes") -> OSError | SessionError | None:
        """Write the changes. If they are written, replace `_written`, whatever sync returns."""
        after, error = changes.after, None
        if changes.lines or self._written.unforced:
            try:
                after, error = self._append(changes)
            except (OSError, SessionError) as raised:
                return raised
            if error is None:
                self.recovered, self._has_reported = self._has_reported, False
        self._written, self._serials = after, None
        return error

    def _append(self, changes: "_Changes") -> tuple[_Written, OSError | None]:
        if self._prepare is not None:
            self.move(self._prepare())
            self._file.create()
            self._prepare = None
        good_bytes, unforced = self._written.good_bytes, self._written.unforced
        lines = changes.lines if good_bytes else [_header(), *changes.lines]
        text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
        piece = ("" if self._written.ends_line else "\n").encode() + text.encode("utf-8", "replace")
        error = self._file.append(good_bytes, piece, unforced)
        after = replace(
            changes.after,
            good_bytes=good_bytes + len(piece),
            unforced=b"" if error is None else unforced + piece,
            ends_line=True,
        )
        return after, error

    def _report(self, path: Path, error: OSError | SessionError | None) -> None:
        if error is None or self._has_reported:
            return
        self._has_reported = True
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SessionError(f"cannot save {path}: {reason}: the chat continues unsaved") from error


class _Changes:
    """The lines that bring the file up to date, and its contents `after` them."""

    def __init__(self, written: _Written) -> None:
        self.after = written
        self.lines: list[Line] = []
        self._messages: list[Line] = []
        self._flags: dict[str, list[int]] = {}

    def settings(self, settings: Mapping[str, Scalar]) -> None:
        before = self.after.settings
        changed = {
            name: value
            for name, value in settings.items()
            if name not in before or before[name] != value
        }
        if changed:
            self.lines.append({"settings": changed})
            self.after = replace(self.after, settings={**before, **changed})

    def system(self, system: str | None) -> None:
        if system != self.after.system:
            self.lines.append({"role": "system", "content": system})
            self.after = replace(self.after, system=system)

    def turns(self, turns: Sequence[Turn]) -> None:
        entries: list[_Entry] = []
        undone: list[int] = []
        n = 0
        # Of thousands of turns, nearly all are unchanged, which comparing identities shows.
        for entry in self.after.entries:
            if n == len(turns) or entry.turn is not turns[n]:
                undone.append(entry.serial)
                continue
            n += 1
            entries.append(entry if _is_as_saved(entry) else self._changed(entry, n == len(turns)))
        entries += [self._new(turn) for turn in turns[n:]]
        if undone:
            self.lines.append({"undo": undone})
        self.lines += self._messages
        self.lines += [{kind: serials} for kind, serials in self._flags.items()]
        self.after = replace(self.after, entries=tuple(entries))

    def _new(self, turn: Turn) -> _Entry:
        serial = self.after.last_serial + 1
        self.after = replace(self.after, last_serial=serial)
        self._messages.append(
            {"role": "user", "turn": serial, "content": turn.user, "time": _now()}
        )
        if turn.finish_reason or turn.reply or turn.thought:
            self._messages.append(_answer(serial, turn))
        self._flag(serial, Turn(turn.user), turn)
        return _Entry(serial, turn, replace(turn))

    def _changed(self, entry: _Entry, is_last: bool) -> _Entry:
        serial, turn, saved = entry.serial, entry.turn, entry.saved
        self._flag(serial, saved, turn)
        if is_last and not turn.finish_reason:
            return replace(
                entry, saved=replace(saved, forgotten=turn.forgotten, pinned=turn.pinned)
            )
        if not _is_same_answer(saved, turn):
            self._messages.append(_answer(serial, turn))
        return replace(entry, saved=replace(turn))

    def _flag(self, serial: int, before: Turn, now: Turn) -> None:
        if now.forgotten != before.forgotten:
            kind = "forgot" if now.forgotten else "remembered"
            self._flags.setdefault(kind, []).append(serial)
        if now.pinned != before.pinned:
            kind = "pinned" if now.pinned else "unpinned"
            self._flags.setdefault(kind, []).append(serial)


def _as_written(saved: Saved) -> _Written:
    entries = zip(saved.serials, saved.turns, strict=True)
    return _Written(
        good_bytes=saved.good_bytes,
        ends_line=saved.ends_line,
        last_serial=saved.last_serial,
        system=saved.system,
        settings=dict(saved.settings),
        entries=tuple(_Entry(serial, turn, replace(turn)) for serial, turn in entries),
    )


def _is_as_saved(entry: _Entry) -> bool:
    return all(getattr(entry.turn, name) is getattr(entry.saved, name) for name in _CAN_CHANGE)


def _is_same_answer(saved: Turn, turn: Turn) -> bool:
    if turn.ids is None or saved.ids is None:
        same_ids = turn.ids is saved.ids
    else:
        same_ids = np.array_equal(turn.ids, saved.ids)
    fields = ("reply", "thought", "later_thoughts", "exact", "finish_reason")
    return same_ids and all(getattr(saved, each) == getattr(turn, each) for each in fields)


def _header() -> Line:
    return {"format": FORMAT, "version": VERSION, "mlxchat": __version__, "created": _now()}


def _answer(serial: int, turn: Turn) -> Line:
    return {
        "role": "assistant",
        "turn": serial,
        "content": turn.reply,
        **({"thought": turn.thought} if turn.thought else {}),
        **({"later_thoughts": list(turn.later_thoughts)} if turn.later_thoughts else {}),
        "ids": None if turn.ids is None else turn.ids.tolist(),
        "exact": bool(turn.exact),
        "finish_reason": turn.finish_reason,
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
