"""Conversations as files: JSON Lines for programs, Markdown for people.

`store.saved` reads the JSON Lines."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlxchat.chat.turn import Turn
from mlxchat.errors import OutputError
from mlxchat.files import make_private_directory, reported_as, write_atomically


def save(path: Path, system: str | None, turns: Iterable[Turn], *, overwrite: bool = True) -> None:
    """Write one message per line, with `role` and `content`, readable only by the owner.

    Raises OutputError on failure, leaving an existing file unchanged.
    """
    if not overwrite:
        _refuse_to_overwrite(path)
    lines = [json.dumps(each, ensure_ascii=False) for each in messages_of(system, turns)]
    _write(path, "".join(f"{line}\n" for line in lines))


def messages_of(system: str | None, turns: Iterable[Turn]) -> list[dict[str, str]]:
    """The messages in order, in the form chat templates and other programs use."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    for turn in turns:
        messages.append({"role": "user", "content": turn.user})
        thought = {"reasoning_content": turn.thought} if turn.thought else {}
        messages.append({"role": "assistant", "content": turn.reply, **thought})
    return messages


def export_markdown(
    path: Path, system: str | None, turns: Sequence[Turn], *, thoughts: bool = True
) -> None:
    """Write the conversation as Markdown. Raises OutputError, also if the file exists."""
    _refuse_to_overwrite(path)
    _write(path, as_markdown(system, turns, thoughts=thoughts))


def as_markdown(system: str | None, turns: Sequence[Turn], *, thoughts: bool = True) -> str:
    """The conversation as Markdown. Thoughts, if included, are in a section that folds."""
    parts = [] if system is None else [f"*{system}*\n"]
    for turn in turns:
        quoted = "\n".join(f"> {line}" for line in turn.user.splitlines())
        thought = "\n\n".join(turn.thoughts) if thoughts else ""
        folded = f"<details><summary>Thoughts</summary>\n\n{thought}\n\n</details>\n\n"
        parts.append(f"{quoted}\n\n{folded if thought else ''}{turn.reply}\n")
    return "\n".join(parts)


def _refuse_to_overwrite(path: Path) -> None:
    if path.exists():
        raise OutputError(f"{path} exists: choose another name")


def _write(path: Path, text: str) -> None:
    with reported_as(OutputError, f"write {path}"):
        make_private_directory(path.parent)
        write_atomically(path, text.encode("utf-8", "replace"))
