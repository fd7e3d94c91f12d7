"""A document that is read in pieces, however large it is: a file, or what a pipe has delivered; and
the files that a folder or a pattern such as `src/**/*.py` stands for."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO, cast

from mlxchat import platform
from mlxchat.errors import InputError, UsageError
from mlxchat.files import open_to_read, reported_as
from mlxchat.units import count, printable

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


class _NotText(InputError):
    """A document of something else: `what` in one word."""

    def __init__(self, name: str, what: str, more: str = "") -> None:
        super().__init__(f"{name} is {what}{more}")
        self.what = what


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
        with reported_as(InputError, f"read {self.name}"), _opened(self.source) as stream:
            stream.seek(self.start)
            while line := stream.readline(LINE_BYTES):
                yield line

    def close(self) -> None:
        if not isinstance(self.source, Path):
            self.source.close()


def readable_name(path: str) -> str:
    """The path on one line: a name may contain anything but NUL and a slash."""
    return printable(re.sub("[\ud800-\udfff]", "\ufffd", path))


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
        try:
            piped = open_document(STDIN, stdin, whole=whole)
        except _NotText as error:
            if needs_pipe or error.what != "empty":
                raise
            notify(str(error))
        else:
            yield piped
    for path in files:
        found = None if path == STDIN else files_in(path)
        if found is None:
            yield open_document(path, stdin, whole=whole)
        else:
            yield from _found(path, found, notify)


def open_document(path: str, stdin: BinaryIO | None, *, whole: bool = False) -> Document:
    """A file, or standard input; anything else, such as a pipe, is copied. Raises InputError."""
    name = name_of(path)
    with reported_as(InputError, f"read {name}"):
        if path == STDIN:
            assert stdin is not None
            return _read(name, _copied(stdin, name, whole))
        if Path(path).is_file():
            return _read(name, Path(path))
        with Path(path).open("rb") as stream:
            return _read(name, _copied(stream, name, whole))


def document_of(data: bytes, name: str) -> Document:
    """Bytes as a document. Raises InputError if they are not text."""
    return _read(name, io.BytesIO(data))


def _found(path: str, found: Sequence[str], notify: Callable[[str], None]) -> Iterator[Document]:
    """The files in a folder or of a pattern that are text. Raises InputError if none is."""
    left_out: list[str] = []
    for each in found:
        try:
            yield _read(name_of(each), Path(each))
        except _NotText as error:
            left_out.append(f"{name_of(each)} ({error.what})")
        except OSError as error:
            left_out.append(f"{name_of(each)} ({error.strerror or error})")
    if left_out:
        more = len(left_out) - MAX_NAMED
        named = left_out[:MAX_NAMED] + ([f"{more:,} more"] if more > 0 else [])
        notice = f"left out {count(len(left_out), 'file')}: {', '.join(named)}"
        if len(left_out) == len(found):
            raise InputError(f"{name_of(path)}: no file is text: {notice}")
        notify(notice)


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


def _opened(source: Source) -> AbstractContextManager[BinaryIO]:
    return open_to_read(source) if isinstance(source, Path) else nullcontext(source)


def _read(name: str, source: Source) -> Document:
    """The document, read to its end. Raises OSError, and InputError, then closing what is not a
    file, if it is not text."""
    digest, decoder = hashlib.blake2b(digest_size=20), codecs.getincrementaldecoder("utf-8")()
    start, size_bytes, is_blank = 0, 0, True
    invalid: int | None = None
    with ExitStack() as stack, _opened(source) as stream:
        if not isinstance(source, Path):
            stack.enter_context(source)
        stream.seek(0)
        piece: bytes | None = None
        while piece != b"":
            piece = stream.read(READ_BYTES)
            if size_bytes == 0 and piece.startswith(UTF16_MARKS):
                raise _NotText(name, "UTF-16", ": convert it first with iconv -f UTF-16 -t UTF-8")
            at = start + size_bytes
            if (position := piece.find(b"\0")) >= 0:
                raise _NotText(name, "binary", f": it contains a NUL at byte {at + position:,}")
            data = piece.removeprefix(codecs.BOM_UTF8) if size_bytes == 0 else piece
            at += len(piece) - len(data)
            start, size_bytes = at - size_bytes, size_bytes + len(data)
            is_blank = is_blank and not data.strip()
            digest.update(data)
            if invalid is None:
                begun = len(decoder.getstate()[0])
                try:
                    decoder.decode(data, final=not piece)
                except UnicodeDecodeError as error:
                    invalid = at - begun + error.start
        if is_blank:
            raise _NotText(name, "empty")
        stack.pop_all()
    notice = None
    if invalid is not None:
        notice = (
            f"{name} is not valid UTF-8: invalid bytes were replaced, the first at byte {invalid:,}"
        )
    passing = not isinstance(source, Path)
    return Document(name, source, start, size_bytes, digest.hexdigest(), passing, notice)


def files_in(path: str) -> list[str] | None:
    """The files in the folder, or that match the pattern, in the order of their names; None if
    `path` is neither. As in a shell, hidden files have to be named. Links to folders are not
    followed, so no circle of them is ever entered.

    Raises UsageError if there are none, InputError if the folder cannot be read.
    """
    if path.startswith("~") and not os.path.lexists(path):
        # The shell does not expand it in a quoted pattern.
        path = os.path.expanduser(path)  # noqa: PTH111
    if Path(path).is_dir():
        with reported_as(InputError, f"read {readable_name(path)}"):
            os.scandir(path).close()
        found, problem = _below(path), "the folder has no files"
    elif not os.path.lexists(path) and re.search(r"[*?[]", path):
        found, problem = _matches(path), "no file matches"
    else:
        return None
    files = sorted(set(found), key=lambda each: PurePath(each).parts)
    if not files:
        raise UsageError(f"{readable_name(path)}: {problem}")
    return files


def _below(root: str) -> Iterator[str]:
    """Yield the files in the folder, and the folders in it that cannot be read, so that reading
    them fails."""
    unreadable: list[OSError] = []
    for folder, folders, names in os.walk(root, onerror=unreadable.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (str(Path(folder, name)) for name in names if not name.startswith("."))
    yield from (error.filename for error in unreadable)


def _matches(pattern: str) -> Iterator[str]:
    parts = PurePath(pattern).parts
    if parts[-1] == "**":
        parts = (*parts, "*")
    root = Path(parts[0]) if parts[0] == "/" else Path()
    names_hidden = any(part.startswith(".") for part in parts)
    for path in root.glob(os.path.join(*parts[root != Path() :])):  # noqa: PTH118
        if not path.is_dir() and (names_hidden or not any(p.startswith(".") for p in path.parts)):
            yield str(path)
