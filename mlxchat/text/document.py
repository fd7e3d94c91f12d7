"""A document that is read in pieces, however large it is: a file, or what a pipe has delivered."""

from __future__ import annotations

import codecs
import hashlib
import io
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from mlxchat import platform
from mlxchat.errors import InputError, UsageError
from mlxchat.files import open_to_read, reported_as
from mlxchat.text.folder import files_in, readable_name
from mlxchat.units import count

STDIN = "-"
STDIN_NAME = "standard input"
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
READ_BYTES = 1 << 20
# Files that a notice names of those left out.
MAX_NAMED = 3

# Text up to this size is read as a whole without checking memory. A larger one, with its tokens
# (some ten times its size), must fit into free memory: `yes |` never ends.
UNCHECKED_BYTES = 100_000_000
COPIES = 10
# Piped text up to this size stays in memory, and more goes to a temporary file.
SPOOLED_BYTES = 8 << 20
# `yes |` never ends: the rest of the disk is left to others.
MIN_FREE_BYTES = 1 << 30
# A longer line is read in pieces.
LINE_BYTES = 1 << 16


# A file is open only while it is read: there may be more than can be open at once.
Source = Path | BinaryIO


@dataclass(frozen=True, slots=True)
class Document:
    """A text of `size_bytes` in UTF-8, from `start` in `source`; `digest` is the hash of its bytes.

    A `passing` document was piped in: nobody may have it again. `notice` is about how it is read.
    """

    name: str
    source: Source
    start: int
    size_bytes: int
    digest: str
    passing: bool
    notice: str | None = None

    def bytes_at(self, offset: int, size_bytes: int) -> bytes:
        """Bytes from an offset in the text. Raises InputError."""
        with reported_as(InputError, f"read {self.name}"), _opened(self.source) as stream:
            stream.seek(self.start + offset)
            return stream.read(size_bytes)

    def text(self) -> str:
        """The whole text, invalid bytes replaced. Raises InputError."""
        return self.bytes_at(0, self.size_bytes).decode("utf-8", "replace")

    def lines(self) -> Iterator[bytes]:
        """The lines with their ends; a long one in pieces. Raises InputError."""
        offset, rest = 0, b""
        while block := self.bytes_at(offset, READ_BYTES):
            offset += len(block)
            *whole, rest = (rest + block).split(b"\n")
            for line in whole:
                yield line + b"\n"
            if len(rest) > LINE_BYTES:
                yield rest
                rest = b""
        if rest:
            yield rest

    def close(self) -> None:
        if not isinstance(self.source, Path):
            self.source.close()


def name_of(path: str) -> str:
    """The name of the file at this path in messages."""
    return STDIN_NAME if path == STDIN else readable_name(path)


def check_stdin(files: Sequence[str], stdin: BinaryIO | None) -> None:
    """Raise UsageError if `files` names standard input twice, or there is none."""
    if files.count(STDIN) > 1:
        raise UsageError("only one - is allowed: standard input can be read only once")
    if STDIN in files and stdin is None:
        if platform.stdin_stays_open():
            raise UsageError("-: mlx.launch does not forward the end of its input; use a file")
        raise UsageError("-: nothing is piped into standard input")


def check_memory(size_bytes: int, name: str) -> None:
    """Raise InputError if so much text, up to the document of this name, does not fit in memory."""
    if size_bytes > UNCHECKED_BYTES and size_bytes * COPIES > platform.free_memory_bytes():
        raise InputError(f"{name} is too large for the rest of this machine's memory")


def open_documents(
    files: Sequence[str],
    stdin: BinaryIO | None,
    notify: Callable[[str], None],
    *,
    needs_pipe: bool = False,
    whole: bool = False,
) -> Iterator[Document]:
    """Yield each document in turn, read once to its end.

    `files` are paths of files, folders and patterns; `-` is standard input, which is None for a
    terminal. If it is piped and not named, it comes first, and may be empty unless `needs_pipe`.
    `notify` gets notices about what is left out. With `whole`, text will be read as a whole: a pipe
    must fit in memory. Raises UsageError, InputError.
    """
    check_stdin(files, stdin)
    if stdin is not None and STDIN not in files:
        copy = _copied(stdin, STDIN_NAME, whole)
        if copy.read(1) or needs_pipe:
            yield _checked(STDIN_NAME, copy, passing=True)
        else:
            copy.close()
            notify(f"{STDIN_NAME} is empty")
    for path in files:
        found = None if path == STDIN else files_in(path)
        if found is None:
            yield open_document(path, stdin, whole=whole)
        else:
            yield from _found(path, found, notify)


def open_document(path: str, stdin: BinaryIO | None, *, whole: bool = False) -> Document:
    """A file, or standard input; anything else, such as a pipe, is copied. Raises InputError."""
    name = name_of(path)
    if path == STDIN:
        assert stdin is not None
        return _checked(name, _copied(stdin, name, whole), passing=True)
    if Path(path).is_file():
        return _checked(name, Path(path), passing=False)
    with reported_as(InputError, f"read {name}"), Path(path).open("rb") as stream:
        return _checked(name, _copied(stream, name, whole), passing=True)


def document_of(data: bytes, name: str) -> Document:
    """Bytes as a document. Raises InputError if they are not text."""
    return _checked(name, io.BytesIO(data), passing=True)


def _found(path: str, found: Sequence[str], notify: Callable[[str], None]) -> Iterator[Document]:
    """The files in a folder or of a pattern that are text. Raises InputError if none is."""
    left_out: dict[str, str] = {}
    for each in found:
        try:
            yield _read(name_of(each), Path(each), passing=False)
        except _NotText as error:
            left_out[each] = error.what
        except OSError as error:
            left_out[each] = error.strerror or str(error)
    if len(left_out) == len(found):
        raise InputError(f"{name_of(path)}: no file is text: {_left_out_notice(left_out)}")
    if left_out:
        notify(_left_out_notice(left_out))


def _left_out_notice(reasons: Mapping[str, str]) -> str:
    """A notice about files that were not read, by their paths."""
    shown = [f"{name_of(path)} ({why})" for path, why in islice(reasons.items(), MAX_NAMED)]
    if len(reasons) > MAX_NAMED:
        shown.append(f"{len(reasons) - MAX_NAMED:,} more")
    return f"left out {count(len(reasons), 'file')}: {', '.join(shown)}"


class _NotText(Exception):
    """What the stream contains instead of text: one word, and the rest of a message."""

    def __init__(self, what: str, more: str = "") -> None:
        super().__init__(what + more)
        self.what = what


def _copied(source: BinaryIO, name: str, whole: bool) -> BinaryIO:
    """The rest of a stream, as one that can be read again: in memory if it is to be read as a
    `whole`. Raises InputError."""
    with ExitStack() as stack, reported_as(InputError, f"copy {name}"):
        max_bytes = 0 if whole else SPOOLED_BYTES
        copy = stack.enter_context(tempfile.SpooledTemporaryFile(max_bytes))
        while piece := source.read(READ_BYTES):
            copy.write(piece)
            if b"\0" in piece:
                break
            if whole:
                check_memory(copy.tell(), name)
            elif shutil.disk_usage(tempfile.gettempdir()).free < MIN_FREE_BYTES:
                raise InputError(f"the input is too large for the disk of {tempfile.gettempdir()}")
        copy.seek(0)
        stack.pop_all()
        return cast(BinaryIO, copy)


def _checked(name: str, source: Source, passing: bool) -> Document:
    """The document, read to its end. Raises InputError."""
    try:
        with reported_as(InputError, f"read {name}"):
            return _read(name, source, passing)
    except _NotText as error:
        if not isinstance(source, Path):
            source.close()
        raise InputError(f"{name} is {error}") from error


def _opened(source: Source) -> AbstractContextManager[BinaryIO]:
    return open_to_read(source) if isinstance(source, Path) else nullcontext(source)


def _pieces(source: Source) -> Iterator[bytes]:
    with _opened(source) as stream:
        stream.seek(0)
        while piece := stream.read(READ_BYTES):
            yield piece


def _read(name: str, source: Source, passing: bool) -> Document:
    """Raises _NotText and OSError."""
    digest = hashlib.blake2b(digest_size=20)
    start, size_bytes, is_blank, rest = 0, 0, True, b""
    invalid: int | None = None
    for piece in _pieces(source):
        if size_bytes == 0 and piece.startswith(UTF16_MARKS):
            raise _NotText("UTF-16", ": convert it first with iconv -f UTF-16 -t UTF-8")
        if (position := piece.find(b"\0")) >= 0:
            at = start + size_bytes + position
            raise _NotText("binary", f": it contains a NUL at byte {at:,}")
        data = piece.removeprefix(codecs.BOM_UTF8) if size_bytes == 0 else piece
        start += len(piece) - len(data)
        is_blank = is_blank and not data.strip()
        if invalid is None:
            invalid, rest = _decoded(rest + data, start + size_bytes - len(rest), final=False)
        digest.update(data)
        size_bytes += len(data)
    if is_blank:
        raise _NotText("empty")
    if invalid is None:
        invalid, _ = _decoded(rest, start + size_bytes - len(rest), final=True)
    notice = None
    if invalid is not None:
        notice = (
            f"{name} is not valid UTF-8: invalid bytes were replaced, the first at byte {invalid:,}"
        )
    return Document(name, source, start, size_bytes, digest.hexdigest(), passing, notice)


def _decoded(data: bytes, offset: int, *, final: bool) -> tuple[int | None, bytes]:
    """Where in the file the first invalid byte of `data` is, if any, and the character it may end
    within. `offset` is where it begins."""
    try:
        _, decoded = codecs.utf_8_decode(data, "strict", final)
    except UnicodeDecodeError as error:
        return offset + error.start, b""
    return None, data[decoded:]
