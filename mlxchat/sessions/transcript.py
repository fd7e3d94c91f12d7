"""Conversations as files: JSON Lines for programs, which are read back, and Markdown for people.

A line is a message with `role` and `content`, the first `documents` characters of which are files;
a reply may have `reasoning_content`. The note on forgotten turns is a system message with the name
"note", each line that is remembered one with the name "remembered". Nothing in a file is trusted.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxchat.chat.state import REMEMBERED_BEGINS, State, Turn
from mlxchat.errors import OutputError, SessionError
from mlxchat.files import reported_as, write_atomically
from mlxchat.sessions.records import NOTE, REMEMBERED, Saved, clean
from mlxchat.text.documents import name_of
from mlxchat.text.extract import closing_fence
from mlxchat.units import json_line

# Of the time of a message.
MAX_TIME_CHARS = 40
THOUGHTS_BEGIN = "<details><summary>Thoughts</summary>\n\n"
THOUGHTS_END = "\n\n</details>\n\n"
NOTE_BEGINS = "<details><summary>Note on forgotten turns</summary>\n\n"
NOTE_ENDS = "\n\n</details>\n"
# A line of a reply that quotes something.
QUOTATION = re.compile("^( {0,2}>)", re.MULTILINE)


def export(path: Path, state: State, *, thoughts: bool = True) -> None:
    """Write the conversation, readable only by the owner: as JSON Lines if the file's name ends so,
    else as Markdown. Raises OutputError, also if the file exists."""
    if os.path.lexists(path):
        raise OutputError(f"{path} exists: choose another name")
    if path.suffix == ".jsonl":
        text = "".join(map(json_line, messages_of(state)))
    else:
        text = as_markdown(state, thoughts=thoughts)
    if not text:
        raise OutputError("the conversation is empty: there is nothing to write")
    with reported_as(OutputError, f"write {path}"):
        write_atomically(path, text.encode("utf-8", "replace"))


def messages_of(state: State) -> list[dict[str, Any]]:
    """The messages in order, in the form chat templates and other programs use. What is remembered
    and the note on forgotten turns are system messages with names."""
    said: list[Any] = [] if state.system is None else [{"role": "system", "content": state.system}]
    said += [{"role": "system", "content": line, "name": REMEMBERED} for line in state.remembered]
    if state.note is not None:
        said.append({"role": "system", "content": state.note, "name": NOTE})
    for turn in state.turns:
        documents = {"documents": turn.documents} if turn.documents else {}
        said.append({"role": "user", "content": turn.user, **documents})
        thought = {"reasoning_content": turn.thought} if turn.thought else {}
        said.append({"role": "assistant", "content": turn.reply, **thought})
    return said


def as_markdown(state: State, *, thoughts: bool = True) -> str:
    """The conversation as Markdown. Thoughts, if included, and the note are in sections that fold.

    Only messages are quoted at the start of a line: a quotation in a reply is indented by a space,
    which Markdown ignores."""
    parts = [] if not state.system else [QUOTATION.sub(r" \1", f"*{state.system}*\n")]
    if state.remembered:
        lines = "".join(f"- {line}\n" for line in state.remembered)
        parts.append(QUOTATION.sub(r" \1", f"{REMEMBERED_BEGINS}\n\n{lines}"))
    if state.note is not None:
        parts.append(QUOTATION.sub(r" \1", f"{NOTE_BEGINS}{state.note}{NOTE_ENDS}"))
    for turn in state.turns:
        quoted = "\n".join(f"> {line}" for line in turn.user.splitlines() or [""])
        thought = "\n\n".join(each + closing_fence(each) for each in turn.thoughts) * thoughts
        folded = f"{THOUGHTS_BEGIN}{thought}{THOUGHTS_END}" if thought else ""
        answer = QUOTATION.sub(r" \1", f"{folded}{turn.reply}")
        parts.append(f"{quoted}\n\n{answer}{closing_fence(turn.reply)}\n")
    return "\n".join(parts)


def read_messages(path: Path) -> Saved:
    """Read a conversation for a new one. Raises SessionError, naming the file and the line."""
    saved, read = Saved(), name_of(str(path))
    with reported_as(SessionError, f"read {read}"), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                if line.strip():
                    _add(saved, _parsed(line))
            except ValueError as error:
                raise SessionError(f"{read}, line {number}: {error}") from error
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
    elif role == "system" and line.get("name") == REMEMBERED:
        saved.settings[REMEMBERED] = json.dumps([*saved.remembered, content], ensure_ascii=False)
    elif role == "system":
        saved.system = content
    elif role == "user":
        time = _text(line.get("time") or "")
        end = line.get("documents")
        documents = end if isinstance(end, int) and 0 <= end <= len(content) else 0
        saved.turns.append(Turn(content, time=time[:MAX_TIME_CHARS], documents=documents))
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
    return clean(value)
