"""Reads conversations from files: what `/save` and `session export` write, and sessions as earlier
versions kept them.

All are JSON Lines. Of an earlier session, the first gives the format; each of the others is one of

    {"settings": {...}}                                             merged into earlier ones
    {"role": "system", "content": str | null}
    {"role": "user", "turn": serial, "content": str, "time": str}
    {"role": "assistant", "turn": serial, "content": str, "ids": [int, ...] | null,
     "exact": bool, "finish_reason": str, "thought": str,           the last one of a turn counts;
     "later_thoughts": [place, ...]}                                thoughts only if there are any
    {"undo": [serial, ...]}
    {"forgot": [...]}, {"remembered": [...]}, {"pinned": [...]}, {"unpinned": [...]}

Serials only increase. Roles and contents without serials, as they are written today, may continue
with such lines. Nothing in a file is trusted.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from mlxchat.chat.turn import Turn
from mlxchat.errors import SessionError
from mlxchat.files import open_to_read
from mlxchat.sessions.unfinished import NAME, read_unfinished

FORMAT = "mlxchat session"
VERSION = 1
MAX_BYTES = 1 << 30
MAX_SERIAL = 2**53
MAX_TIME_CHARS = 40
# The setting that is the note, and the name of its message in a file.
NOTE = "note"

_DAMAGED = object()

Scalar = str | int | float | bool | None

# How each kind of line changes the turns it lists.
FLAGS = {
    "forgot": ("forgotten", True),
    "remembered": ("forgotten", False),
    "pinned": ("pinned", True),
    "unpinned": ("pinned", False),
}


@dataclass(slots=True)
class Saved:
    """A conversation as it was saved. `updated_s` is in seconds since 1970, `last_serial` the
    highest ever given to a turn, undone or not."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list[Turn])
    serials: list[int] = field(default_factory=list[int])
    settings: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    notices: tuple[str, ...] = ()
    updated_s: float = 0.0
    last_serial: int = 0

    @property
    def note(self) -> str | None:
        """The note on forgotten turns."""
        note = self.settings.get(NOTE)
        return note if isinstance(note, str) and note else None


def read_earlier(path: Path) -> Saved:
    """Read a session that an earlier version saved, and the unfinished reply next to it.

    Raises SessionError, naming the file and the line, if it is not one.
    """
    saved = _read(path)
    unfinished = read_unfinished(path.with_name(NAME))
    if unfinished is not None:
        add_unfinished(saved, *unfinished)
    return saved


def read_messages(path: Path) -> Saved:
    """Read a conversation for a new one from JSON Lines: only texts, without tokens and the old
    window. Raises SessionError."""
    saved = _read(path)
    saved.turns = [
        Turn(
            turn.user,
            turn.reply,
            thought=turn.thought,
            later_thoughts=turn.later_thoughts,
            time=turn.time,
        )
        for turn in saved.turns
    ]
    return saved


def add_unfinished(saved: Saved, serial: int, thought: str, reply: str) -> None:
    """Replace the last reply with what was shown of it, if that is more than was recorded."""
    if not saved.turns or serial != saved.serials[-1]:
        return
    turn = saved.turns[-1]
    if len(thought) + len(reply) <= len(turn.thought) + len(turn.reply):
        return
    turn.thought, turn.reply, turn.finish_reason = thought, reply, "interrupted"
    turn.ids, turn.exact = None, False
    saved.notices += ("the last reply was interrupted: kept what had been shown",)


def _read(path: Path) -> Saved:
    try:
        with open_to_read(path) as file:
            return _replay(path, file)
    except FileNotFoundError:
        raise SessionError(f"{path} does not exist") from None
    except OSError as error:
        raise SessionError(f"cannot read {path}: {error.strerror or error}") from error


def _replay(path: Path, file: BinaryIO) -> Saved:
    status = os.fstat(file.fileno())
    if status.st_size > MAX_BYTES:
        raise SessionError(f"{path} is too large to be a conversation")
    replay = _Replay()
    saved = replay.saved
    saved.updated_s = status.st_mtime
    for number, line in enumerate(iter(file.readline, b""), start=1):
        try:
            value = _parse(line)
            if value is _DAMAGED and not file.readline():
                saved.notices += (f"ignored the last line of {path}, which was cut off",)
                break
            replay.take(value)
        except ValueError as error:
            raise SessionError(f"{path}, line {number}: {error}") from error
    replay.finish()
    return saved


def _parse(line: bytes) -> object:
    """Parse the line. A kill or a power cut can only have damaged the last one."""
    if b"\0" in line:
        return _DAMAGED
    try:
        return json.loads(line.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError, MemoryError) as error:
        if line.endswith(b"\n"):
            raise ValueError("damaged, or not JSON") from error
        return _DAMAGED


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


class _Replay:
    """Builds the conversation from its lines. `take` raises ValueError."""

    def __init__(self) -> None:
        self.saved = Saved()
        self._turns: dict[int, Turn] = {}
        self._begun = False
        # Whether /save wrote the lines: their turns are numbered in order.
        self._plain = False
        self._kinds: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "role": self._message,
            "settings": self._settings,
            "undo": self._undo,
            **dict.fromkeys(FLAGS, self._flag),
        }

    def take(self, value: Any) -> None:
        line = _object(value, "damaged, or not a line of a conversation")
        if not self._begun:
            self._begun = True
            if "format" in line:
                self._header(line)
                return
            _require("role" in line, "not the first line of a conversation")
            self._plain = True
        take = next((take for kind, take in self._kinds.items() if kind in line), None)
        if take is None:
            raise ValueError("not a line of a conversation")
        take(line)

    def finish(self) -> None:
        self.saved.turns = list(self._turns.values())
        self.saved.serials = list(self._turns)

    def _header(self, line: Mapping[str, Any]) -> None:
        version = line.get("version")
        _require(line["format"] == FORMAT, "the first line of another kind of file")
        if type(version) is not int or version < 1:
            raise ValueError("the version is not a number")
        if version > VERSION:
            raise ValueError(
                f"written by a newer mlxchat, in version {str(version)[:20]} of the format; "
                f"this mlxchat reads version {VERSION}"
            )

    def _settings(self, line: Mapping[str, Any]) -> None:
        values = _object(line["settings"], "the settings are not an object")
        self.saved.settings |= {_text(name): _scalar(value) for name, value in values.items()}

    def _message(self, line: Mapping[str, Any]) -> None:
        role, content = line["role"], line.get("content")
        if role == "system":
            self._system(line, None if content is None else _text(content))
        elif role == "user":
            self._user(line, _text(content))
        elif role == "assistant":
            self._assistant(line, _text(content))
        else:
            raise ValueError("unknown role")

    def _system(self, line: Mapping[str, Any], content: str | None) -> None:
        if line.get("name") == NOTE:
            self.saved.settings[NOTE] = content
        else:
            self.saved.system = content

    def _user(self, line: Mapping[str, Any], content: str) -> None:
        last = self.saved.last_serial
        serial = _serial(line["turn"]) if self._is_numbered(line) else last + 1
        _require(serial > last, f"turn {serial} does not come after turn {last}")
        self.saved.last_serial = serial
        time = line.get("time")
        self._turns[serial] = Turn(content, time=_text(time)[:MAX_TIME_CHARS] if time else "")

    def _assistant(self, line: Mapping[str, Any], reply: str) -> None:
        turn = self._answered(line)
        exact, finish_reason = line.get("exact", False), line.get("finish_reason", "")
        _require(type(exact) is bool, "exact is neither true nor false")
        turn.reply, turn.ids, turn.exact = reply, _ids(line.get("ids")), exact
        turn.finish_reason = _text(finish_reason)
        turn.thought = _text(line.get("thought", line.get("reasoning_content")) or "")
        turn.later_thoughts = _places(line.get("later_thoughts", []), len(turn.thought))

    def _answered(self, line: Mapping[str, Any]) -> Turn:
        if self._is_numbered(line):
            return self._turn(line["turn"])
        turn = next(reversed(self._turns.values()), None)
        if turn is None or turn.reply or turn.thought:
            raise ValueError("a reply without a message")
        return turn

    def _is_numbered(self, line: Mapping[str, Any]) -> bool:
        _require(self._plain or "turn" in line, "the number of the turn is missing")
        return "turn" in line

    def _undo(self, line: Mapping[str, Any]) -> None:
        for serial in _list(line["undo"]):
            self._turn(serial)
            del self._turns[serial]

    def _flag(self, line: Mapping[str, Any]) -> None:
        for kind, (name, value) in FLAGS.items():
            for serial in _list(line.get(kind, [])):
                setattr(self._turn(serial), name, value)

    def _turn(self, value: object) -> Turn:
        turn = self._turns.get(_serial(value))
        if turn is None:
            raise ValueError(f"there is no turn {value}")
        return turn


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a text is missing")  # noqa: TRY004
    # JSON can encode an unpaired surrogate, which no tokenizer accepts.
    return value.encode("utf-8", "replace").decode()


def _serial(value: object) -> int:
    if type(value) is not int or not 0 < value < MAX_SERIAL:
        raise ValueError("the number of a turn is invalid")
    return value


def _object(value: Any, otherwise: str) -> dict[str, Any]:
    _require(isinstance(value, dict), otherwise)
    return value


def _list(value: Any, otherwise: str = "the turns are not a list") -> list[Any]:
    _require(isinstance(value, list), otherwise)
    return value


def _ids(value: object) -> np.ndarray | None:
    if value is None:
        return None
    ids = _list(value, "the ids are not a list")
    _require(all(type(id_) is int and 0 <= id_ < 2**31 for id_ in ids), "a token id is invalid")
    return np.array(ids, np.int32)


def _places(value: object, length: int) -> tuple[int, ...]:
    """Ascending places in a text of that length."""
    places = _list(value, "the places of later thoughts are not a list")
    valid = all(type(place) is int and 0 <= place <= length for place in places)
    _require(valid and places == sorted(places), "the places of later thoughts are invalid")
    return tuple(places)


def _scalar(value: object) -> Scalar:
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ValueError("a setting is neither a string nor a number")
