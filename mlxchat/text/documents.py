"""The user's input as one text: files, standard input and the prompt.

Documents come first, each after its name, and the prompt last, so that the model reads the
instruction last. Text only: no tokens here.
"""

import codecs
import json
import os
import select
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from mlxchat import platform
from mlxchat.errors import InputError, UsageError
from mlxchat.files import open_to_read, reported_as
from mlxchat.text.folder import files_in, readable_name
from mlxchat.units import count

STDIN = "-"
STDIN_NAME = "standard input"
EMPTY_STDIN = f"{STDIN_NAME} is empty"
SEPARATOR = "\n\n"

# Documents up to this size are read without checking memory. A larger one, with its text and tokens
# (some ten times its size), must fit into free memory: `yes |` never ends.
UNCHECKED_BYTES = 100_000_000
COPIES = 10
READ_BYTES = 1 << 20
# Files that a notice names of those left out.
MAX_NAMED = 3

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
    budget = _Budget()
    notices: list[str] = []
    headings = headings and has_headings(files)
    read_blocks = [_read_file(path, stdin, budget) for path in blocks]
    documents = [each for path in files for each in _read_files(path, stdin, budget, headings)]
    if stdin is not None and STDIN not in named:
        data = _read_bounded(stdin, STDIN_NAME, budget)
        if data or (prompt is None and not named and not may_be_empty):
            piped = _decode(data, STDIN_NAME)
            documents.insert(0, _with_heading(piped, STDIN_NAME, headings))
        else:
            notices.append(EMPTY_STDIN)
    if asked:
        documents.append(_read_file(STDIN, stdin, budget))
    elif prompt is not None:
        # Bytes from the shell that are not UTF-8 arrive as surrogates: turn them back into bytes.
        documents.append(_decode(prompt.encode("utf-8", "surrogateescape"), "the prompt"))
    if not documents and not may_be_empty:
        raise UsageError("nothing to read: pass PROMPT or --file, or pipe in a document")
    read = [*read_blocks, *documents]
    return Input(
        SEPARATOR.join(document.text for document in documents if document.text),
        (*notices, *(notice for document in read for notice in document.notices)),
        tuple(block.text + SEPARATOR for block in read_blocks),
    )


def has_headings(files: Sequence[str]) -> bool:
    """Whether documents begin with their names: what is only piped in has none."""
    return any(path != STDIN for path in files)


def heading(name: str) -> str:
    """What the model reads before the document of this name."""
    return f"# {name}{SEPARATOR}"


def left_out_notice(reasons: Mapping[str, str]) -> str:
    """A notice about files that were not read, by their paths."""
    shown = [f"{name_of(path)} ({why})" for path, why in islice(reasons.items(), MAX_NAMED)]
    if len(reasons) > MAX_NAMED:
        shown.append(f"{len(reasons) - MAX_NAMED:,} more")
    return f"left out {count(len(reasons), 'file')}: {', '.join(shown)}"


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
    while data := stream.readline(UNCHECKED_BYTES):
        number += 1
        name = f"line {number:,} of standard input"
        if len(data) == UNCHECKED_BYTES:
            raise InputError(f"{name} is longer than {UNCHECKED_BYTES:,} bytes")
        if not data.strip():
            continue
        try:
            read = _decode(data, name)
            role, text, others = _message(read.text.rstrip("\r\n"), name)
        except InputError as error:
            yield Spoken("user", "", error=error)
            continue
        yield Spoken(role, text, read.notices[0] if read.notices else None, others)


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


def name_of(path: str) -> str:
    """The name of the file at this path in messages."""
    return STDIN_NAME if path == STDIN else readable_name(path)


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


class _Budget:
    """How much can still be read: all documents of an input have to fit in memory together."""

    def __init__(self) -> None:
        self._bytes = 0
        self._most_bytes: int | None = None
        self._first = ""

    def take(self, size_bytes: int, name: str) -> None:
        """Count the bytes read from `name`. Raises InputError if they would not fit."""
        self._first = self._first or name
        self._bytes += size_bytes
        if self._bytes <= UNCHECKED_BYTES:
            return
        if self._most_bytes is None:
            self._most_bytes = self._bytes + platform.free_memory_bytes() // COPIES
        if self._bytes > self._most_bytes:
            are = f"{name} is" if name == self._first else f"{self._first} to {name} are"
            raise InputError(f"{are} too large for this machine's memory")


def _read_files(
    path: str, stdin: BinaryIO | None, budget: _Budget, headings: bool
) -> Iterator[Input]:
    """Read the file, or those in a folder or of a pattern: only their text, with a notice about the
    others. Raises UsageError if there are none, InputError if none is text."""
    found = None if path == STDIN else files_in(path)
    if found is None:
        yield _with_heading(_read_file(path, stdin, budget), name_of(path), headings)
        return
    left_out: dict[str, str] = {}
    for each in found:
        document = _read_found(each, budget)
        if isinstance(document, str):
            left_out[each] = document
        else:
            yield _with_heading(document, name_of(each), headings)
    if left_out:
        notice = left_out_notice(left_out)
        if len(left_out) == len(found):
            raise InputError(f"{name_of(path)}: no file is text: {notice}")
        yield Input("", (notice,))


def _read_found(path: str, budget: _Budget) -> Input | str:
    """Read a file that the user did not name; if it is not text, return what it is."""
    name = name_of(path)
    try:
        with open_to_read(Path(path)) as stream:
            # Those of /proc are empty, and reading them may never end.
            data = _read_bounded(stream, name, budget) if os.fstat(stream.fileno()).st_size else b""
    except OSError as error:
        return error.strerror or str(error)
    if data.startswith(UTF16_MARKS):
        return "UTF-16"
    if b"\0" in data:
        return "binary"
    return _decode(data, name) if data.removeprefix(codecs.BOM_UTF8).strip() else "empty"


def _read_file(path: str, stdin: BinaryIO | None, budget: _Budget) -> Input:
    if path == STDIN:
        assert stdin is not None
        return _decode(_read_bounded(stdin, STDIN_NAME, budget), STDIN_NAME)
    name = name_of(path)
    with reported_as(InputError, f"read {name}"), Path(path).open("rb") as stream:
        data = _read_bounded(stream, name, budget)
    return _decode(data, name)


def _read_bounded(stream: BinaryIO, name: str, budget: _Budget) -> bytes:
    """Read to the end, or to the first NUL, which gets the input refused anyway.

    Raises InputError if the input would not fit into memory.
    """
    pieces: list[bytes] = []
    while piece := stream.read(READ_BYTES):
        pieces.append(piece)
        if b"\0" in piece:
            break
        budget.take(len(piece), name)
    return b"".join(pieces)


def _with_heading(document: Input, name: str, headings: bool) -> Input:
    return replace(document, text=heading(name) + document.text) if headings else document


def _decode(data: bytes, name: str) -> Input:
    """Decode UTF-8, replacing invalid bytes. Refuses empty and binary data."""
    if data.startswith(UTF16_MARKS):
        raise InputError(f"{name} is UTF-16: convert it first with iconv -f UTF-16 -t UTF-8")
    if (position := data.find(b"\0")) >= 0:
        raise InputError(f"{name} is binary: it contains a NUL at byte {position:,}")
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    data = data.removeprefix(mark)
    if not data.strip():
        raise InputError(f"{name} is empty")
    try:
        return Input(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", "replace")
        return Input(text, (invalid_notice(name, len(mark) + error.start),))


def invalid_notice(name: str, position: int) -> str:
    """The notice about a text with invalid bytes, the first of them at `position` in the file."""
    return f"{name} is not valid UTF-8: invalid bytes were replaced, the first at byte {position:,}"
