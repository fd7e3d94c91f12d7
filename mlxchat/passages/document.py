"""A document that is read in pieces, however large it is: a file, or what a pipe has delivered."""

from __future__ import annotations

import codecs
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from mlxchat.errors import InputError
from mlxchat.files import open_to_read, reported_as
from mlxchat.text.documents import (
    EMPTY_STDIN,
    READ_BYTES,
    STDIN,
    UTF16_MARKS,
    check_stdin,
    invalid_notice,
    left_out_notice,
    name_of,
)
from mlxchat.text.folder import files_in

# Piped text up to this size stays in memory, and more goes to a temporary file.
SPOOLED_BYTES = 8 << 20
# `yes |` never ends: the rest of the disk is left to others.
MIN_FREE_BYTES = 1 << 30
# A longer line is read in pieces.
LINE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Document:
    """A text of `size_bytes` in UTF-8, from `start` in `stream`; `digest` is the hash of its bytes.

    A `passing` document was piped in: nobody may have it again. `notice` is about how it is read.
    """

    name: str
    stream: BinaryIO
    start: int
    size_bytes: int
    digest: str
    passing: bool
    notice: str | None = None

    def bytes_at(self, offset: int, size_bytes: int) -> bytes:
        """Bytes from an offset in the text. Raises InputError."""
        with reported_as(InputError, f"read {self.name}"):
            self.stream.seek(self.start + offset)
            return self.stream.read(size_bytes)

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
        self.stream.close()


def open_documents(
    files: Sequence[str], stdin: BinaryIO | None, notify: Callable[[str], None]
) -> Iterator[Document]:
    """Yield each document in turn, read once to its end. `files` and `stdin` are those of
    `read_input`, and so is what is refused. `notify` gets the notice about files left out. Raises
    UsageError, InputError."""
    check_stdin(files, stdin)
    if stdin is not None and STDIN not in files:
        copy = _copied(stdin)
        if copy.read(1) or not files:
            yield _checked(STDIN, copy, passing=True)
        else:
            copy.close()
            notify(EMPTY_STDIN)
    for path in files:
        if path == STDIN:
            assert stdin is not None
            yield _checked(path, _copied(stdin), passing=True)
        elif (found := files_in(path)) is None:
            yield _opened(Path(path))
        else:
            yield from _found(path, found, notify)


def _found(path: str, found: Sequence[str], notify: Callable[[str], None]) -> Iterator[Document]:
    """The files in a folder or of a pattern that are text. Raises InputError if none is."""
    left_out: dict[str, str] = {}
    for each in found:
        try:
            yield _read(name_of(each), cast(BinaryIO, _OnDemand(Path(each))), passing=False)
        except _NotText as error:
            left_out[each] = error.what
        except OSError as error:
            left_out[each] = error.strerror or str(error)
    if len(left_out) == len(found):
        raise InputError(f"{name_of(path)}: no file is text: {left_out_notice(left_out)}")
    if left_out:
        notify(left_out_notice(left_out))


class _OnDemand:
    """A file that is open only while it is read: there may be more than can be open at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def seek(self, offset: int) -> int:
        self._offset = offset
        return offset

    def read(self, size_bytes: int) -> bytes:
        with open_to_read(self._path) as stream:
            stream.seek(self._offset)
            # Those of /proc are empty, and reading them may never end.
            data = stream.read(size_bytes) if os.fstat(stream.fileno()).st_size else b""
        self._offset += len(data)
        return data

    def close(self) -> None:
        """Nothing is open."""


class _NotText(Exception):
    """What the stream contains instead of text: one word, and the rest of a message."""

    def __init__(self, what: str, more: str = "") -> None:
        super().__init__(what + more)
        self.what = what


def _opened(path: Path) -> Document:
    """A file; anything else, such as a pipe, is copied. Raises InputError."""
    with ExitStack() as stack:
        with reported_as(InputError, f"read {name_of(str(path))}"):
            stream = stack.enter_context(path.open("rb"))
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                stack.pop_all()
                return _checked(str(path), stream, passing=False)
        return _checked(str(path), _copied(stream), passing=True)


def _copied(source: BinaryIO) -> BinaryIO:
    """The rest of a stream, as one that can be read again. Raises InputError."""
    with ExitStack() as stack, reported_as(InputError, "copy the input"):
        copy = stack.enter_context(tempfile.SpooledTemporaryFile(SPOOLED_BYTES))
        while piece := source.read(READ_BYTES):
            copy.write(piece)
            if b"\0" in piece:
                break
            if shutil.disk_usage(tempfile.gettempdir()).free < MIN_FREE_BYTES:
                raise InputError(f"the input is too large for the disk of {tempfile.gettempdir()}")
        copy.seek(0)
        stack.pop_all()
        return cast(BinaryIO, copy)


def _checked(path: str, stream: BinaryIO, passing: bool) -> Document:
    """The document in a stream, read to its end. Raises InputError, and closes the stream."""
    name = name_of(path)
    try:
        with reported_as(InputError, f"read {name}"):
            return _read(name, stream, passing)
    except _NotText as error:
        stream.close()
        raise InputError(f"{name} is {error}") from error
    except BaseException:
        stream.close()
        raise


def _read(name: str, stream: BinaryIO, passing: bool) -> Document:
    """Raises _NotText and OSError."""
    stream.seek(0)
    digest = hashlib.blake2b(digest_size=20)
    start, size_bytes, is_blank, rest = 0, 0, True, b""
    invalid: int | None = None
    while piece := stream.read(READ_BYTES):
        if size_bytes == 0 and piece.startswith(UTF16_MARKS):
            raise _NotText("UTF-16", ": convert it first with iconv -f UTF-16 -t UTF-8")
        if (position := piece.find(b"\0")) >= 0:
            at = start + size_bytes + position
            raise _NotText("binary", f": it contains a NUL at byte {at:,}")
        if size_bytes == 0 and piece.startswith(codecs.BOM_UTF8):
            start = len(codecs.BOM_UTF8)
            piece = piece[start:]
        is_blank = is_blank and not piece.strip()
        if invalid is None:
            invalid, rest = _decoded(rest + piece, start + size_bytes - len(rest), final=False)
        digest.update(piece)
        size_bytes += len(piece)
    if is_blank:
        raise _NotText("empty")
    if invalid is None:
        invalid, _ = _decoded(rest, start + size_bytes - len(rest), final=True)
    notice = None if invalid is None else invalid_notice(name, invalid)
    return Document(name, stream, start, size_bytes, digest.hexdigest(), passing, notice)


def _decoded(data: bytes, offset: int, *, final: bool) -> tuple[int | None, bytes]:
    """Where in the file the first invalid byte of `data` is, if any, and the character it may end
    within. `offset` is where it begins."""
    try:
        _, decoded = codecs.utf_8_decode(data, "strict", final)
    except UnicodeDecodeError as error:
        return offset + error.start, b""
    return None, data[decoded:]
