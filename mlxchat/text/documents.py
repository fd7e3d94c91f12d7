"""The user's input as one text: files, standard input and the prompt.

Documents come first and the prompt last, so that the model reads the instruction last. Text only:
no tokens here.
"""

import codecs
import json
import os
import select
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from mlxchat import platform
from mlxchat.errors import InputError, UsageError
from mlxchat.files import reported_as
from mlxchat.wording import Field

STDIN = "-"
SEPARATOR = "\n\n"

# Documents up to this size are read without checking memory. A larger one, with its text and tokens
# (some ten times its size), must fit into free memory: `yes |` never ends.
UNCHECKED_BYTES = 100_000_000
COPIES = 10
READ_BYTES = 1 << 20
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


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
) -> Input:
    """Read the documents and append the prompt.

    `files` and `blocks` are paths; `-` is standard input. Piped standard input is read even if no
    `-` names it, and then comes before the files. `stdin` is None for a terminal. Raises UsageError
    if there is nothing to read but blocks, InputError for input that is not text.
    """
    if prompt == STDIN:
        prompt, files = None, (*files, STDIN)
    named = [*files, *blocks]
    check_stdin(named, stdin)
    read_blocks = [_read_file(path, stdin) for path in blocks]
    documents = [_read_file(path, stdin) for path in files]
    if stdin is not None and STDIN not in named:
        data = _read_bounded(stdin, "standard input")
        if data or (prompt is None and not named):
            documents.insert(0, _decode(data, "standard input"))
    if prompt is not None:
        # Bytes from the shell that are not UTF-8 arrive as surrogates: turn them back into bytes.
        documents.append(_decode(prompt.encode("utf-8", "surrogateescape"), "the prompt"))
    if not documents:
        raise UsageError(
            "nothing to read: pass ",
            Field("prompt"),
            " or ",
            Field("files"),
            ", or pipe in a document",
        )
    read = [*read_blocks, *documents]
    return Input(
        SEPARATOR.join(document.text for document in documents),
        tuple(notice for document in read for notice in document.notices),
        tuple(block.text + SEPARATOR for block in read_blocks),
    )


def check_stdin(files: Sequence[str], stdin: BinaryIO | None) -> None:
    """Raise UsageError if `files` names standard input twice, or there is none."""
    if files.count(STDIN) > 1:
        raise UsageError("only one - is allowed: standard input can be read only once")
    if STDIN in files and stdin is None:
        if platform.stdin_stays_open():
            raise UsageError("-: mlx.launch does not forward the end of its input; use a file")
        raise UsageError("-: nothing is piped into standard input")


@dataclass(frozen=True, slots=True)
class Spoken:
    """One turn of a piped chat: its `role`, "user" or "system", its text, and the other fields of
    its line, which may constrain the answer."""

    role: str
    text: str
    notice: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read_turns(stream: BinaryIO) -> Iterator[Spoken]:
    """Yield the turns in a stream, each as soon as its line arrives; blank lines are skipped.

    A line is a user message, or a JSON object with `role` and `content`. Raises InputError for a
    line that is not text and for an unknown role.
    """
    number = 0
    while data := stream.readline(UNCHECKED_BYTES):
        number += 1
        name = f"line {number:,} of standard input"
        if len(data) == UNCHECKED_BYTES:
            raise InputError(f"{name} is longer than {UNCHECKED_BYTES:,} bytes")
        if not data.strip():
            continue
        read = _decode(data, name)
        role, text, others = _message(read.text.rstrip("\r\n"), name)
        yield Spoken(role, text, read.notices[0] if read.notices else None, others)


def _message(line: str, name: str) -> tuple[str, str, dict[str, Any]]:
    try:
        value = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not {"role", "content"} <= value.keys():
        return "user", line, {}
    role, content = value.pop("role"), value.pop("content")
    if role not in ("user", "system") or not isinstance(content, str):
        raise InputError(f"{name}: role must be user or system, and content a string")
    return role, content, value


def name_of(path: str) -> str:
    """The name of the file at this path in messages."""
    return "standard input" if path == STDIN else path


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


def _read_file(path: str, stdin: BinaryIO | None) -> Input:
    if path == STDIN:
        assert stdin is not None
        return _decode(_read_bounded(stdin, "standard input"), "standard input")
    with reported_as(InputError, f"read {path}"), Path(path).open("rb") as stream:
        data = _read_bounded(stream, path)
    return _decode(data, path)


def _read_bounded(stream: BinaryIO, name: str) -> bytes:
    """Read to the end, or to the first NUL, which gets the input refused anyway.

    Raises InputError if the input would not fit into memory.
    """
    pieces: list[bytes] = []
    size_bytes, most_bytes = 0, None
    while piece := stream.read(READ_BYTES):
        pieces.append(piece)
        size_bytes += len(piece)
        if b"\0" in piece:
            break
        if size_bytes > UNCHECKED_BYTES:
            most_bytes = most_bytes or size_bytes + platform.free_memory_bytes() // COPIES
            if size_bytes > most_bytes:
                raise InputError(f"{name} is too large for this machine's memory")
    return b"".join(pieces)


def _decode(data: bytes, name: str) -> Input:
    """Decode UTF-8, replacing invalid bytes. Refuses empty and binary data."""
    if data.startswith(UTF16_MARKS):
        raise InputError(f"{name} is UTF-16: convert it first with iconv -f UTF-16 -t UTF-8")
    if (position := data.find(b"\0")) >= 0:
        raise InputError(f"{name} is binary: it contains a NUL at byte {position:,}")
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        raise InputError(f"{name} is empty")
    try:
        return Input(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", "replace")
        notice = (
            f"{name} is not valid UTF-8: invalid bytes were replaced, the first at byte "
            f"{error.start:,}"
        )
        return Input(text, (notice,))
