"""The user's input as one text: files, standard input and the prompt.

Documents come first, each after its name, and the prompt last, so that the model reads the
instruction last. Text only: no tokens here.
"""

import json
import os
import select
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from mlxchat import platform
from mlxchat.errors import InputError, UsageError
from mlxchat.text.document import (
    STDIN,
    Document,
    check_memory,
    check_stdin,
    document_of,
    open_document,
    open_documents,
)

SEPARATOR = "\n\n"
# A longer line of a piped chat is refused.
MAX_LINE_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Input:
    """The whole text, and notices about how it was read.

    `blocks` are the texts that precede it and are each cached on their own.
    """

    text: str
    notices: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()


def read_input(
    prompt: str | None,
    files: Sequence[str],
    stdin: BinaryIO | None,
    blocks: Sequence[str] = (),
    *,
    headings: bool = True,
    may_be_empty: bool = False,
) -> Input:
    """Read the documents and append the prompt.

    `files` are paths of files, folders and patterns, `blocks` paths of files; `-` is standard
    input. Piped standard input is read even if no `-` names it, and then comes before the files.
    `stdin` is None for a terminal. With `headings`, each file begins with its name. Raises
    UsageError if there is nothing to read but blocks, unless it `may_be_empty`, InputError for
    input that is not text.
    """
    asked = [STDIN] if prompt == STDIN else []
    named = [*files, *asked, *blocks]
    check_stdin(named, stdin)
    headings = headings and has_headings(files)
    notices: list[str] = []
    size_bytes = 0

    def read(document: Document) -> str:
        """The text of a document, which has to fit in memory together with the others."""
        nonlocal size_bytes
        with closing(document):
            size_bytes += document.size_bytes
            check_memory(size_bytes, document.name)
            notices.extend([document.notice] if document.notice else [])
            return document.text()

    read_blocks = [read(open_document(path, stdin, whole=True)) + SEPARATOR for path in blocks]
    piped = None if STDIN in (*asked, *blocks) else stdin
    needs_pipe = prompt is None and not named and not may_be_empty
    texts = [
        (heading(each.name) if headings else "") + read(each)
        for each in open_documents(files, piped, notices.append, needs_pipe=needs_pipe, whole=True)
    ]
    if asked:
        texts.append(read(open_document(STDIN, stdin, whole=True)))
    elif prompt is not None:
        # Bytes from the shell that are not UTF-8 arrive as surrogates: turn them back into bytes.
        data = prompt.encode("utf-8", "surrogateescape")
        texts.append(read(document_of(data, "the prompt")))
    if not texts and not may_be_empty:
        raise UsageError("nothing to read: pass PROMPT or --file, or pipe in a document")
    return Input(SEPARATOR.join(texts), tuple(notices), tuple(read_blocks))


def has_headings(files: Sequence[str]) -> bool:
    """Whether documents begin with their names: what is only piped in has none."""
    return any(path != STDIN for path in files)


def heading(name: str) -> str:
    """What the model reads before the document of this name."""
    return f"# {name}{SEPARATOR}"


@dataclass(frozen=True, slots=True)
class Spoken:
    """One turn of a piped chat: its `role`, "user" or "system", its text, and the other fields of
    its line, which may constrain the answer. `error` says why a line is not a turn."""

    role: str
    text: str
    notice: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict[str, Any])
    error: InputError | None = None


def read_turns(stream: BinaryIO) -> Iterator[Spoken]:
    """Yield the turns in a stream, each as soon as its line arrives; blank lines are skipped.

    A line is a user message, or a JSON object with `role` and `content`. One that is not text or
    has an unknown role is an error. Raises InputError for a line that is too long.
    """
    number = 0
    while data := stream.readline(MAX_LINE_BYTES):
        number += 1
        name = f"line {number:,} of standard input"
        if len(data) == MAX_LINE_BYTES:
            raise InputError(f"{name} is longer than {MAX_LINE_BYTES:,} bytes")
        if not data.strip():
            continue
        try:
            read = document_of(data, name)
            role, text, others = _message(read.text().rstrip("\r\n"), name)
        except InputError as error:
            yield Spoken("user", "", error=error)
            continue
        yield Spoken(role, text, read.notice, others)


def _message(line: str, name: str) -> tuple[str, str, dict[str, Any]]:
    try:
        value = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not {"role", "content"} <= value.keys():
        return "user", line, {}
    role, content = value.pop("role"), value.pop("content")
    # As OpenAI's library writes them.
    role = "system" if role == "developer" else role
    if content and isinstance(content, list) and all(map(_is_text_part, content)):
        content = "\n".join(part["text"] for part in content)
    if role not in ("user", "system") or not isinstance(content, str):
        raise InputError(f"{name}: role must be user or system, and content a string")
    return role, content, value


def _is_text_part(part: Any) -> bool:
    is_text = isinstance(part, dict) and part.get("type") == "text"
    return is_text and isinstance(part.get("text"), str)


def piped_stdin(*, to_its_end: bool = True) -> BinaryIO | None:
    """Standard input as bytes, or None if it is a terminal, closed or /dev/null.

    With `to_its_end`, also None if its end never arrives, as under mlx.launch.
    """
    if sys.stdin is None or sys.stdin.closed:
        return None
    if to_its_end and platform.stdin_stays_open():
        return None
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return None
    # A character device is a terminal or /dev/null: neither holds a document.
    return None if stat.S_ISCHR(mode) else sys.stdin.buffer


def is_stdin_left_unread() -> bool:
    """Whether input was piped in that is not read because its end never arrives."""
    stdin = piped_stdin(to_its_end=False)
    if stdin is None or not platform.stdin_stays_open():
        return False
    return bool(select.select([stdin], [], [], 0)[0])
