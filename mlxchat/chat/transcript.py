"""Conversations as files: JSON Lines for programs, Markdown for people.

`sessions.saved` reads the JSON Lines."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlxchat.chat.turn import Turn
from mlxchat.errors import OutputError
from mlxchat.files import make_private_directory, reported_as, write_atomically

THOUGHTS_BEGIN = "<details><summary>Thoughts</summary>\n\n"
THOUGHTS_END = "\n\n</details>\n\n"
NOTE_BEGINS = "<details><summary>Note on forgotten turns</summary>\n\n"
NOTE_ENDS = "\n\n</details>\n"
# A line of a reply that quotes something.
QUOTATION = re.compile("^( {0,2}>)", re.MULTILINE)


def save(
    path: Path,
    system: str | None,
    turns: Iterable[Turn],
    *,
    note: str | None = None,
    overwrite: bool = True,
) -> None:
    """Write one message per line, with `role` and `content`, readable only by the owner.

    Raises OutputError on failure, leaving an existing file unchanged.
    """
    if not overwrite:
        _refuse_to_overwrite(path)
    lines = [json.dumps(each, ensure_ascii=False) for each in messages_of(system, turns, note)]
    _write(path, "".join(f"{line}\n" for line in lines))


def messages_of(
    system: str | None, turns: Iterable[Turn], note: str | None = None
) -> list[dict[str, str]]:
    """The messages in order, in the form chat templates and other programs use. The note on
    forgotten turns is a system message with the name "note"."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    if note is not None:
        messages.append({"role": "system", "content": note, "name": "note"})
    for turn in turns:
        messages.append({"role": "user", "content": turn.user})
        thought = {"reasoning_content": turn.thought} if turn.thought else {}
        messages.append({"role": "assistant", "content": turn.reply, **thought})
    return messages


def export_markdown(
    path: Path,
    system: str | None,
    turns: Sequence[Turn],
    *,
    note: str | None = None,
    thoughts: bool = True,
) -> None:
    """Write the conversation as Markdown. Raises OutputError, also if the file exists."""
    _refuse_to_overwrite(path)
    _write(path, as_markdown(system, turns, note=note, thoughts=thoughts))


def as_markdown(
    system: str | None, turns: Sequence[Turn], *, note: str | None = None, thoughts: bool = True
) -> str:
    """The conversation as Markdown. Thoughts, if included, are in a section that folds, as is the
    note on forgotten turns.

    Only messages are quoted at the start of a line: a quotation in a reply is indented by a space,
    which Markdown ignores."""
    parts = [] if system is None else [QUOTATION.sub(r" \1", f"*{system}*\n")]
    if note is not None:
        parts.append(QUOTATION.sub(r" \1", f"{NOTE_BEGINS}{note}{NOTE_ENDS}"))
    for turn in turns:
        quoted = "\n".join(f"> {line}" for line in (turn.user.splitlines() or [""]))
        thought = "\n\n".join(turn.thoughts) if thoughts else ""
        folded = f"{THOUGHTS_BEGIN}{thought}{THOUGHTS_END}" if thought else ""
        answer = QUOTATION.sub(r" \1", f"{folded}{turn.reply}")
        parts.append(f"{quoted}\n\n{answer}\n")
    return "\n".join(parts)


def _refuse_to_overwrite(path: Path) -> None:
    if path.exists():
        raise OutputError(f"{path} exists: choose another name")


def _write(path: Path, text: str) -> None:
    with reported_as(OutputError, f"write {path}"):
        make_private_directory(path.parent)
        write_atomically(path, text.encode("utf-8", "replace"))
