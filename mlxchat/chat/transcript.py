"""Conversations as files: JSON Lines to be read again, Markdown to be read by people."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlxchat.chat.turn import Turn
from mlxchat.errors import InputError, OutputError
from mlxchat.files import write_atomically

MOST_BYTES = 1 << 30


def save(path: Path, system: str | None, turns: Iterable[Turn], *, overwrite: bool = True) -> None:
    """Write one message a line, `role` and `content`, readable by its owner only.

    Raises OutputError where that is not possible; then what was there is as it was.
    """
    if not overwrite:
        _refuse_to_overwrite(path)
    lines = [json.dumps(each, ensure_ascii=False) for each in messages_of(system, turns)]
    _write(path, "".join(f"{line}\n" for line in lines))


def messages_of(system: str | None, turns: Iterable[Turn]) -> list[dict[str, str]]:
    """The messages in order, as chat templates and other programs know them."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    for turn in turns:
        messages.append({"role": "user", "content": turn.user})
        thought = {"reasoning_content": turn.thought} if turn.thought else {}
        messages.append({"role": "assistant", "content": turn.reply, **thought})
    return messages


def load(path: Path) -> tuple[str | None, list[Turn]]:
    """Read what `save` wrote. Raises InputError naming the line that is something else."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is too large to be a conversation")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    system: str | None = None
    turns: list[Turn] = []
    for number, line in enumerate(lines, start=1):
        role, content, thought = _message(path, number, line)
        if role == "system" and not turns:
            system = content
        elif role == "user":
            turns.append(Turn(content))
        elif role == "assistant" and turns and not (turns[-1].reply or turns[-1].thought):
            turns[-1].reply, turns[-1].thought = content, thought
        else:
            raise InputError(f"{path}, line {number}: a {role!r} message has no place here")
    return system, turns


def _message(path: Path, number: int, line: str) -> tuple[str, str, str]:
    try:
        value = json.loads(line)
        role, content = value["role"], value["content"]
        thought = value.get("reasoning_content") or ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}, line {number} is not a message: {error}") from error
    if not all(isinstance(text, str) for text in (role, content, thought)):
        raise InputError(f"{path}, line {number}: role and content must be texts")
    return role, content, thought


def export_markdown(
    path: Path, system: str | None, turns: Sequence[Turn], *, thoughts: bool = True
) -> None:
    """Write the conversation for people. Raises OutputError; refuses to overwrite a file."""
    _refuse_to_overwrite(path)
    _write(path, as_markdown(system, turns, thoughts=thoughts))


def as_markdown(system: str | None, turns: Sequence[Turn], *, thoughts: bool = True) -> str:
    """The conversation as Markdown; thoughts, unless they are left out, can be folded away."""
    parts = [] if system is None else [f"*{system}*\n"]
    for turn in turns:
        quoted = "\n".join(f"> {line}" for line in turn.user.splitlines())
        thought = turn.thought.strip() if thoughts else ""
        folded = f"<details><summary>Thoughts</summary>\n\n{thought}\n\n</details>\n\n"
        parts.append(f"{quoted}\n\n{folded if thought else ''}{turn.reply}\n")
    return "\n".join(parts)


def _refuse_to_overwrite(path: Path) -> None:
    if path.exists():
        raise OutputError(f"{path} exists: choose another name")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, text.encode("utf-8", "replace"), 0o600)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
