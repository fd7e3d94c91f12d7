"""Conversations as they are saved, and those in files: what `/export` and `session export` write.

A file is JSON Lines, each a message with `role` and `content`; a reply may have
`reasoning_content`, and the note on forgotten turns is a system message with the name "note".
Nothing in a file is trusted.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlxchat.chat.turn import Turn
from mlxchat.errors import SessionError
from mlxchat.files import open_to_read, reported_as

MAX_BYTES = 1 << 30
MAX_TIME_CHARS = 40
# The setting that is the note, and the name of its message in a file.
NOTE = "note"

Scalar = str | int | float | bool | None


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
