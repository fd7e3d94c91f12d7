"""What the user gives to read: files, standard input and the prompt, as one text.

Documents come first and the prompt last, so that the instruction is the latest thing that the
model sees. Text only: no tokens here.
"""

import codecs
import json
import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mlxchat import platform
from mlxchat.errors import InputError, UsageError
from mlxchat.files import reported_as
from mlxchat.wording import Field

STDIN = "-"
SEPARATOR = "\n\n"

# A document up to this size is read without a thought; a larger one may take, with its text and its
# tokens at some ten times its size, no more than what is free. `yes |` never ends.
MODEST_BYTES = 100_000_000
COPIES = 10
READ_BYTES = 1 << 20
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class Input:
    """The whole text, and what the user should know of how it was read.

    `blocks` are the texts that stand before it, and that are to be kept each by itself.
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
    """Read the documents and put the prompt behind them.

    `files` and `blocks` are paths, `-` is standard input; piped standard input is read, before the
    files, even where no `-` names it. `stdin` None stands for a terminal. Raises UsageError where
    there is nothing to read beside blocks, InputError for what cannot be read as text.
    """
    named = [*files, *blocks]
    if named.count(STDIN) > 1:
        raise UsageError("- can be given once only: standard input can be read only once")
    if STDIN in named and stdin is None:
        if platform.stdin_stays_open():
            raise UsageError("-: mlx.launch does not pass on where its input ends: give a file")
        raise UsageError("-: standard input is a terminal; pipe a document into it")
    read_blocks = [_read_file(path, stdin) for path in blocks]
    documents = [_read_file(path, stdin) for path in files]
    if stdin is not None and STDIN not in named:
        data = _read_bounded(stdin, "standard input")
        if data or (prompt is None and not named):
            documents.insert(0, _decode(data, "standard input"))
    if prompt is not None:
        # What the shell passed that was no UTF-8 arrives as surrogates: back to its bytes.
        documents.append(_decode(prompt.encode("utf-8", "surrogateescape"), "the prompt"))
    if not documents:
        raise UsageError(
            "nothing to read: give ",
            Field("prompt"),
            ", ",
            Field("files"),
            ", or pipe a document in",
        )
    read = [*read_blocks, *documents]
    return Input(
        SEPARATOR.join(document.text for document in documents),
        tuple(notice for document in read for notice in document.notices),
        tuple(block.text + SEPARATOR for block in read_blocks),
    )


@dataclass(frozen=True, slots=True)
class Spoken:
    """One turn of a piped chat: who says what (`role` is "user" or "system")."""

    role: str
    text: str
    notice: str | None = None


def read_turns(stream: BinaryIO) -> Iterator[Spoken]:
    """The turns of a stream, each as soon as its line is there; blank lines are none.

    A line is what the user says, or a JSON object with `role` and `content`. Raises InputError for
    a line that is not text, and for a role that has nothing to say here.
    """
    number = 0
    while data := stream.readline(MODEST_BYTES):
        number += 1
        name = f"line {number:,} of standard input"
        if len(data) == MODEST_BYTES:
            raise InputError(f"{name} is longer than {MODEST_BYTES:,} bytes")
        if not data.strip():
            continue
        read = _decode(data, name)
        role, text = _message(read.text.rstrip("\r\n"), name)
        yield Spoken(role, text, read.notices[0] if read.notices else None)


def _message(line: str, name: str) -> tuple[str, str]:
    try:
        value = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not {"role", "content"} <= value.keys():
        return "user", line
    role, content = value["role"], value["content"]
    if role not in ("user", "system") or not isinstance(content, str):
        raise InputError(f"{name}: role must be user or system, and content a text")
    return role, content


def name_of(path: str) -> str:
    """How messages call a file that was named like this."""
    return "standard input" if path == STDIN else path


def piped_stdin(*, to_its_end: bool = True) -> BinaryIO | None:
    """Standard input as bytes, or None where it is a terminal, closed, or nothing is behind it; or
    where it has no end, and is to be read `to_its_end`."""
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
    """Whether something was piped to us that has no end to read it to."""
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
    """Read to the end, or to the first NUL, at which it will be refused anyway.

    Raises InputError for what would not fit into memory.
    """
    pieces: list[bytes] = []
    size_bytes, most_bytes = 0, None
    while piece := stream.read(READ_BYTES):
        pieces.append(piece)
        size_bytes += len(piece)
        if b"\0" in piece:
            break
        if size_bytes > MODEST_BYTES:
            most_bytes = most_bytes or size_bytes + platform.free_memory_bytes() // COPIES
            if size_bytes > most_bytes:
                raise InputError(f"{name} is too long for this machine's memory")
    return b"".join(pieces)


def _decode(data: bytes, name: str) -> Input:
    """Decode UTF-8, with replacement characters for what is not. Refuses empty and binary data."""
    if data.startswith(UTF16_MARKS):
        raise InputError(f"{name} is UTF-16: convert it first, with iconv -f UTF-16 -t UTF-8")
    if (position := data.find(b"\0")) >= 0:
        raise InputError(f"{name} is binary: it holds a NUL at byte {position:,}")
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        raise InputError(f"{name} is empty")
    try:
        return Input(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", "replace")
        notice = (
            f"{name} is not valid UTF-8: bytes that are not text were replaced, the first at "
            f"byte {error.start:,}"
        )
        return Input(text, (notice,))
