"""What the user gives to be read: files, folders, patterns such as `src/**/*.py`, standard input
and the prompt, as one text or as documents of any size; and the turns of a piped chat.

Documents come first, each after its name, and the prompt last, so that the model reads the
instruction last. Text only: no tokens here.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import itertools
import json
import os
import re
import select
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast

from mlxchat import platform
from mlxchat.errors import InputError, UsageError
from mlxchat.files import open_to_read, reported_as
from mlxchat.units import Notify, count, printable

STDIN = "-"
# Between documents, their names and the prompt.
SEPARATOR = "\n\n"
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
READ_BYTES = 1 << 20
# Files that a notice names of those left out.
MAX_NAMED = 10

# Text up to this size is read as a whole without checking memory. A larger one, with its tokens
# (some ten times its size), must fit into free memory: `yes |` never ends.
UNCHECKED_BYTES = 100_000_000
COPIES = 10
# Piped text up to this size stays in memory, and more goes to a temporary file.
SPOOLED_BYTES = 8 << 20
# `yes |` never ends: the rest of the disk is left to others.
MIN_FREE_BYTES = 1 << 30
# A longer line is read in pieces; one of a piped chat is refused.
LINE_BYTES, MAX_TURN_BYTES = 1 << 13, 100_000_000

# A file is open only while it is read: there may be more than can be open at once.
Source = Path | BinaryIO


class NoText(InputError):
    """A document of something else: `what` in one word."""

    def __init__(self, name: str, what: str, more: str = "") -> None:
        super().__init__(f"{name} is {what}{more}")
        self.what = what


@dataclass(frozen=True, slots=True)
class Document:
    """A text of `size_bytes` in UTF-8, from `start` in `source`; `digest` is the hash of its bytes,
    `notice` is about how it is read."""

    name: str
    source: Source
    start: int
    size_bytes: int
    digest: str
    notice: str | None = None

    @property
    def is_passing(self) -> bool:
        """Whether it was piped in, and cannot be read again."""
        return not isinstance(self.source, Path)

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
            at, end = self.start, self.start + self.size_bytes
            # What was piped in has one stream, of which `bytes_at` may read another part meanwhile.
            while stream.seek(at) == at and (line := stream.readline(min(LINE_BYTES, end - at))):
                at += len(line)
                yield line

    def close(self) -> None:
        if not isinstance(self.source, Path):
            self.source.close()


def name_of(path: str) -> str:
    """The name of the file at this path in messages, on one line, whatever it contains."""
    return "standard input" if path in (STDIN, "/dev/stdin") else printable(path)


def _check_stdin(files: Sequence[str], stdin: BinaryIO | None) -> None:
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
    notify: Notify,
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
    _check_stdin(files, stdin)
    if stdin is not None and STDIN not in files:
        try:
            piped = open_document(STDIN, stdin, whole=whole)
        except NoText as error:
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
    name, path = name_of(path), os.path.expanduser(path)  # noqa: PTH111
    with reported_as(InputError, f"read {name}"):
        if path != STDIN and Path(path).is_file():
            return _read(name, Path(path))
        with nullcontext(stdin) if path == STDIN else Path(path).open("rb") as stream:
            assert stream is not None
            if path != STDIN and stream.isatty():
                # A chat reads its keys from it.
                raise InputError(f"{name} is a terminal, not a file")
            return _read(name, _copied(stream, name, whole))


def document_of(data: bytes, name: str) -> Document:
    """Bytes as a document. Raises InputError if they are not text."""
    return _read(name, io.BytesIO(data))


def _found(path: str, found: Sequence[str], notify: Notify) -> Iterator[Document]:
    """The files in a folder or of a pattern that are text. Raises InputError if none is."""
    left_out: list[str] = []
    for each in found:
        try:
            yield _read(name_of(each), Path(each))
        except NoText as error:
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
    """The rest of a stream, to be read again: in memory if as a `whole`. Raises InputError."""
    with ExitStack() as stack, reported_as(InputError, f"copy {name}"):
        max_bytes = 0 if whole else SPOOLED_BYTES
        copy = stack.enter_context(tempfile.SpooledTemporaryFile(max_bytes))
        while piece := source.read(READ_BYTES):
            copy.write(piece)
            if b"\0" in piece:
                break
            if whole:
                check_memory(copy.tell(), name)
            elif copy.tell() > max_bytes:
                folder = tempfile.gettempdir()
                if shutil.disk_usage(folder).free < MIN_FREE_BYTES:
                    raise InputError(f"the input is too large for the disk of {folder}")
        copy.seek(0)
        stack.pop_all()
        return cast(BinaryIO, copy)


def _opened(source: Source) -> AbstractContextManager[BinaryIO]:
    return open_to_read(source) if isinstance(source, Path) else nullcontext(source)


def _read(name: str, source: Source) -> Document:
    """The document, read to its end. Raises OSError, and InputError, then closing what is not a
    file, if it is not text."""
    digest, decoder = hashlib.blake2b(digest_size=20), codecs.getincrementaldecoder("utf-8")()
    is_blank, invalid = True, None
    with ExitStack() as stack, _opened(source) as stream:
        if not isinstance(source, Path):
            stack.enter_context(source)
        stream.seek(0)
        begin = stream.read(len(codecs.BOM_UTF8)) or b""  # None: a device has nothing yet.
        if begin.startswith(UTF16_MARKS):
            raise NoText(name, "UTF-16", ": convert it first with iconv -f UTF-16 -t UTF-8")
        start = at = stream.seek(len(begin) if begin == codecs.BOM_UTF8 else 0)
        piece = begin
        while piece != b"":
            piece = stream.read(READ_BYTES) or b""
            if (position := piece.find(b"\0")) >= 0:
                raise NoText(name, "binary", f": it contains a NUL at byte {at + position:,}")
            is_blank = is_blank and not piece.strip()
            digest.update(piece)
            if invalid is None:
                begun = len(decoder.getstate()[0])
                try:
                    decoder.decode(piece, final=not piece)
                except UnicodeDecodeError as error:
                    invalid = at - begun + error.start
            at += len(piece)
        if is_blank:
            raise NoText(name, "empty")
        stack.pop_all()
    wrong = f"{name} is not valid UTF-8: invalid bytes were replaced, the first at byte"
    notice = None if invalid is None else f"{wrong} {invalid:,}"
    return Document(name, source, start, at - start, digest.hexdigest(), notice)


def files_in(path: str) -> list[str] | None:
    """The files in the folder, or that match the pattern, in the order of their names; None if
    `path` is neither. As in a shell, hidden files have to be named. Links to folders are not
    followed, so no circle of them is ever entered. Raises InputError if there are none."""
    if path.startswith("~") and not os.path.lexists(path):
        # The shell does not expand it in a quoted pattern.
        path = os.path.expanduser(path)  # noqa: PTH111
    # Those of pathlib fail for what may not be seen.
    if os.path.isdir(path):  # noqa: PTH112
        with reported_as(InputError, f"read {name_of(path)}"):
            os.scandir(path).close()
        found, problem = _below(path), "the folder has no files, or only hidden ones"
    elif not os.path.lexists(path) and re.search(r"[*?[]", path):
        found, problem = _matches(path), "no file matches"
    elif re.match("https?://", path):
        raise InputError(f"{name_of(path)} is an address: download it, and give its file")
    else:
        return None
    files = sorted(set(found), key=lambda each: PurePath(each).parts)
    if not files:
        raise InputError(f"{name_of(path)}: {problem}")
    return files


def _below(root: str) -> Iterator[str]:
    """Yield the files in the folder, and folders in it that cannot be read, for the error."""
    unreadable: list[OSError] = []
    for folder, folders, names in os.walk(root, onerror=unreadable.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (str(Path(folder, name)) for name in names if not name.startswith("."))
    yield from (error.filename for error in unreadable)


def _matches(pattern: str) -> Iterator[str]:
    # Within a name, ** is what * is.
    parts = [p if p == "**" else re.sub(r"\*\*+", "*", p) for p in PurePath(pattern).parts]
    parts += ["*"] * (parts[-1] == "**")
    root = Path(parts[0]) if parts[0].startswith("/") else Path()
    for path in root.glob(os.path.join(*parts[root != Path() :])):  # noqa: PTH118
        if not os.path.isdir(path) and _hidden(path.parts) <= _hidden(parts):  # noqa: PTH112
            yield str(path)


def _hidden(parts: Iterable[str]) -> int:
    return sum(part.startswith(".") and part != ".." for part in parts)


@dataclass(frozen=True, slots=True)
class Input:
    """The whole text, whose first `documents` characters come before the prompt; the documents
    `found`; notices. `blocks` are the texts that precede it and are each cached alone."""

    text: str
    notices: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    documents: int = 0
    found: Sequence[tuple[Document, str]] = ()


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
    UsageError if there are only blocks, unless it `may_be_empty`, InputError if it is no text.
    """
    asked = [STDIN] if prompt == STDIN else []
    named = [*files, *asked, *blocks]
    _check_stdin(named, stdin)
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
    opened = open_documents(files, piped, notices.append, needs_pipe=needs_pipe, whole=True)
    found = [(each, read(each)) for each in opened]
    texts = [(heading(each.name) if headings else "") + text for each, text in found]
    if asked:
        texts.append(read(open_document(STDIN, stdin, whole=True)))
    elif prompt is not None:
        # The shell's bytes that are not UTF-8 are surrogates here.
        texts.append(read(document_of(prompt.encode("utf-8", "surrogateescape"), "the prompt")))
    if not texts and not may_be_empty:
        raise UsageError("nothing to read: pass a text or --file, or pipe in a document")
    whole = SEPARATOR.join(texts)
    documents = 0 if prompt is None else len(whole) - len(texts[-1])
    return Input(whole, tuple(notices), tuple(read_blocks), documents, found)


def has_headings(files: Sequence[str]) -> bool:
    """Whether documents begin with their names: what is only piped in has none."""
    return any(path != STDIN for path in files)


def heading(name: str) -> str:
    """What the model reads before the document of this name."""
    return f"# {name}{SEPARATOR}"


@dataclass(frozen=True, slots=True)
class Spoken:
    """One turn of a piped chat: its `role`, "user" or "system", its text, with the `documents` of
    its Input, and the other fields of its line, which may constrain the answer; or an `error`. The
    `line` says which one it was, if it was one."""

    role: str
    text: str
    notice: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict[str, Any])
    error: InputError | None = None
    documents: int = 0
    line: str = ""


def read_turns(stream: BinaryIO) -> Iterator[Spoken]:
    """Yield the turns in a stream, each as soon as its line arrives; blank lines are skipped. A
    line is a user message, or a JSON object with `role` and `content`; one that is not text or has
    an unknown role is an error. Raises InputError for a line that is too long."""
    for number in itertools.count(1):
        data = stream.readline(MAX_TURN_BYTES)
        name = f"line {number:,} of standard input"
        if len(data) == MAX_TURN_BYTES:
            raise InputError(f"{name} is longer than {MAX_TURN_BYTES:,} bytes")
        if not data:
            return
        if not data.strip():
            continue
        try:
            read = document_of(data, name)
            yield _spoken(read.text().rstrip("\r\n"), name, read.notice)
        except InputError as error:
            yield Spoken("user", "", error=error)


def _spoken(line: str, name: str, notice: str | None) -> Spoken:
    value: Any = {}
    with suppress(ValueError, RecursionError):
        value = json.loads(line) if line.startswith("{") else {}
    # Another object with a role is someone's data.
    is_role = value.get("role") in ("user", "system", "developer")
    if not (is_role or {"role", "content"} <= value.keys()):
        return Spoken("user", line, notice, line=name)
    role, content = value.pop("role"), value.pop("content", None)
    # As OpenAI's library writes them.
    role = "system" if role == "developer" else role
    if content and isinstance(content, list) and all(map(_is_text_part, content)):
        content = "\n".join(part["text"] for part in content)
    is_blank = role == "user" and not str(content).strip()
    if role not in ("user", "system") or not isinstance(content, str) or is_blank:
        raise InputError(f"{name}: role must be user or system, and content text, not blank")
    return Spoken(role, content, notice, value, line=name)


def _is_text_part(part: Any) -> bool:
    is_text = isinstance(part, dict) and part.get("type") == "text"
    return is_text and isinstance(part.get("text"), str)


def piped_stdin(*, to_its_end: bool = True) -> BinaryIO | None:
    """Standard input as bytes, or None if it is a terminal, closed or /dev/null.

    With `to_its_end`, also None if its end never arrives, as under mlx.launch.
    """
    if to_its_end and platform.stdin_stays_open():
        return None
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return None
    # A character device is a terminal or /dev/null: neither holds a document.
    return None if stat.S_ISCHR(mode) else sys.stdin.buffer


def warn_of_unread_stdin(warn: Notify) -> None:
    """Say if input was piped in that is not read, because its end never arrives."""
    stdin = piped_stdin(to_its_end=False) if platform.stdin_stays_open() else None
    if stdin is not None and select.select([stdin], [], [], 0)[0]:
        warn("stdin is not read, because mlx.launch does not report its end: use --file")
