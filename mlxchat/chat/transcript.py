"""Conversations as files: JSON Lines for programs, Markdown for people.

`sessions.listing` reads the JSON Lines."""

import json
import re
from pathlib import Path

from mlxchat.chat.state import State
from mlxchat.errors import OutputError
from mlxchat.files import make_private_directory, reported_as, write_atomically

THOUGHTS_BEGIN = "<details><summary>Thoughts</summary>\n\n"
THOUGHTS_END = "\n\n</details>\n\n"
NOTE_BEGINS = "<details><summary>Note on forgotten turns</summary>\n\n"
NOTE_ENDS = "\n\n</details>\n"
# A line of a reply that quotes something.
QUOTATION = re.compile("^( {0,2}>)", re.MULTILINE)


def export(path: Path, state: State, *, thoughts: bool = True) -> None:
    """Write the conversation, readable only by the owner: as JSON Lines if the file's name ends so,
    else as Markdown. Raises OutputError, also if the file exists."""
    if path.exists():
        raise OutputError(f"{path} exists: choose another name")
    if path.suffix == ".jsonl":
        lines = (json.dumps(each, ensure_ascii=False) for each in messages_of(state))
        text = "".join(f"{line}\n" for line in lines)
    else:
        text = as_markdown(state, thoughts=thoughts)
    with reported_as(OutputError, f"write {path}"):
        make_private_directory(path.parent)
        write_atomically(path, text.encode("utf-8", "replace"))


def messages_of(state: State) -> list[dict[str, str]]:
    """The messages in order, in the form chat templates and other programs use. The note on
    forgotten turns is a system message with the name "note"."""
    messages = [] if state.system is None else [{"role": "system", "content": state.system}]
    if state.note is not None:
        messages.append({"role": "system", "content": state.note, "name": "note"})
    for turn in state.turns:
        messages.append({"role": "user", "content": turn.user})
        thought = {"reasoning_content": turn.thought} if turn.thought else {}
        messages.append({"role": "assistant", "content": turn.reply, **thought})
    return messages


def as_markdown(state: State, *, thoughts: bool = True) -> str:
    """The conversation as Markdown. Thoughts, if included, are in a section that folds, as is the
    note on forgotten turns.

    Only messages are quoted at the start of a line: a quotation in a reply is indented by a space,
    which Markdown ignores."""
    parts = [] if state.system is None else [QUOTATION.sub(r" \1", f"*{state.system}*\n")]
    if state.note is not None:
        parts.append(QUOTATION.sub(r" \1", f"{NOTE_BEGINS}{state.note}{NOTE_ENDS}"))
    for turn in state.turns:
        quoted = "\n".join(f"> {line}" for line in (turn.user.splitlines() or [""]))
        thought = "\n\n".join(turn.thoughts) if thoughts else ""
        folded = f"{THOUGHTS_BEGIN}{thought}{THOUGHTS_END}" if thought else ""
        answer = QUOTATION.sub(r" \1", f"{folded}{turn.reply}")
        parts.append(f"{quoted}\n\n{answer}\n")
    return "\n".join(parts)
