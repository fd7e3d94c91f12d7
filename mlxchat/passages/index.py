"""The passages of documents (at paragraphs, else at lines, sentences or words) in an index by word;
that of one is kept on the disk by its digest.

An index may be lost: a damaged one is made again. Nothing of the document's text is copied into it
but its words; the passages themselves are read from the document.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from pathlib import Path

from mlxchat.errors import InputError
from mlxchat.files import make_private_directory, prune, replacing, reported_as
from mlxchat.recall.choice import words
from mlxchat.text.documents import Document
from mlxchat.units import Notify, Progress

# A passage of this size, some 50 tokens, may end with a paragraph...
MIN_BYTES = 200
# ... and none is larger: some 150 tokens, in scripts of one or of three bytes a character.
MAX_BYTES = 600
_SENTENCE_END = re.compile(rb"[.!?;](?=\s)|\xe3\x80\x82|\xef\xbc[\x81\x9f]")
_CONTINUES = 0b1000_0000
# A new number for other tables, words or places to split.
FORMAT = 1
# A smaller document is indexed faster than its index would be found.
KEPT_BYTES = 1 << 20
# All files in the directory; the least recently used go first.
MAX_KEPT_BYTES = 2 << 30
SUFFIX = ".sqlite"
ROWS = 1_000
SCHEMA = f"""
PRAGMA user_version = {FORMAT};
CREATE TABLE passages (number INTEGER PRIMARY KEY,
    document INT NOT NULL, start INT NOT NULL, end INT NOT NULL,
    first_line INT NOT NULL, last_line INT NOT NULL, sum INT NOT NULL);
CREATE VIRTUAL TABLE texts USING fts5(
    words, content='', tokenize='porter unicode61');
"""


@dataclass(frozen=True, slots=True)
class Span:
    """The place of a passage: bytes from `start` to `end`, lines counted from 1."""

    start: int
    end: int
    first_line: int
    last_line: int


def split(document: Document) -> Iterator[tuple[Span, bytes]]:
    """Yield the passages in order, with their text. Blank lines between them are left out."""
    begun: list[tuple[Span, bytes]] = []
    for span, piece in _pieces(document):
        is_blank = not piece.strip()
        size = span.start - begun[0][0].start if begun else 0
        if begun and (size >= MIN_BYTES if is_blank else size + len(piece) > MAX_BYTES):
            yield _joined(begun)
            begun = []
        if begun or not is_blank:
            begun.append((span, piece))
    if begun:
        yield _joined(begun)


def _joined(begun: list[tuple[Span, bytes]]) -> tuple[Span, bytes]:
    while not begun[-1][1].strip():
        begun.pop()
    (first, _), (last, _) = begun[0], begun[-1]
    span = Span(first.start, last.end, first.first_line, last.last_line)
    return span, b"".join(piece for _, piece in begun)


def _pieces(document: Document) -> Iterator[tuple[Span, bytes]]:
    """The lines, or parts of them, none larger than a passage."""
    offset, number, rest = 0, 1, b""
    for line in chain(document.lines(), [b""]):
        rest += line
        is_whole = not line or line.endswith(b"\n")
        while len(rest) > (0 if is_whole else MAX_BYTES):
            size = _end_of_piece(rest[: MAX_BYTES + 1])
            yield Span(offset, offset + size, number, number), rest[:size]
            rest, offset = rest[size:], offset + size
        number += is_whole


def _end_of_piece(line: bytes) -> int:
    """Where to cut a line of more than MAX_BYTES, of which these are the first; else its length."""
    if len(line) <= MAX_BYTES:
        return len(line)
    head = line[:MAX_BYTES]
    ends = [match.end() for match in _SENTENCE_END.finditer(head) if match.end() >= MIN_BYTES]
    if ends:
        return ends[-1]
    if (space := head.rfind(b" ")) >= MIN_BYTES:
        return space + 1
    cut = MAX_BYTES
    # Not within a character, which has at most four bytes.
    while cut > MAX_BYTES - 4 and line[cut] & 0b1100_0000 == _CONTINUES:
        cut -= 1
    return cut


class Outdated(Exception):
    """The index does not describe the document: it is damaged, or the document has changed."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a document; `number` counts from 0."""

    document: Document
    number: int
    span: Span
    text: str


class PassageIndex:
    """The index of documents, in a database. Methods raise Outdated."""

    def __init__(self, documents: Sequence[Document], database: sqlite3.Connection) -> None:
        self.documents = documents
        self._database = database
        self._count = self._first("SELECT COUNT(*) FROM passages")[0]

    def __len__(self) -> int:
        return self._count

    def with_word(self, word: str, limit: int, *, ranked: bool = False) -> list[int]:
        """Numbers of at most `limit` passages that contain the word; `ranked` by how often."""
        query = f"SELECT rowid FROM texts WHERE texts MATCH ?{' ORDER BY rank' * ranked} LIMIT ?"
        with _damage():
            return [row[0] for row in self._database.execute(query, (f'"{word}"', limit))]

    def passage(self, number: int) -> Passage:
        """A passage, read from the document. Raises InputError if that fails."""
        _, place, *span, checksum = self._first("SELECT * FROM passages WHERE number = ?", number)
        if not 0 <= place < len(self.documents):
            raise Outdated("a passage is of no document")
        document = self.documents[place]
        found = Span(*span)
        if not 0 <= found.start < found.end <= document.size_bytes:
            raise Outdated("a passage is not in its document")
        data = document.bytes_at(found.start, found.end - found.start)
        if zlib.crc32(data) != checksum:
            raise Outdated(f"{document.name}: passage {number} has changed")
        return Passage(document, number, found, data.strip().decode("utf-8", "replace"))

    def close(self) -> None:
        self._database.close()

    def _first(self, query: str, *values: int) -> tuple[int, ...]:
        with _damage():
            row = self._database.execute(query, values).fetchone()
        if row is None or not all(isinstance(each, int) for each in row):
            raise Outdated("a row is missing")
        return row


def open_index(
    documents: Sequence[Document],
    directory: Path | None,
    on_progress: Progress,
    notify: Notify,
    *,
    anew: bool = False,
) -> PassageIndex:
    """The index of these documents: that of one may be kept in `directory`, which several processes
    may use, and is looked for there unless it is made `anew`. Else it is a temporary file, deleted
    when it is closed. Raises InputError if none can be written."""
    if directory is not None and not anew and (found := find_index(documents[0], directory)):
        return found
    with reported_as(InputError, "index the documents"):
        database = _made(documents, on_progress)
    if directory is not None:
        try:
            _keep(database, documents[0], directory)
        except OSError as error:
            notify(f"the index of {documents[0].name} is not kept: {error.strerror or error}")
    return PassageIndex(documents, database)


def find_index(document: Document, directory: Path) -> PassageIndex | None:
    """The kept index, if there is a sound one."""
    path = _path_of(document, directory)
    with contextlib.suppress(sqlite3.Error, Outdated), contextlib.ExitStack() as stack:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        database = sqlite3.connect(uri, uri=True, check_same_thread=False)
        stack.callback(database.close)
        if database.execute("PRAGMA user_version").fetchone() == (FORMAT,):
            index = PassageIndex((document,), database)
            with contextlib.suppress(OSError):
                os.utime(path)
            stack.pop_all()
            return index
    return None


def _keep(database: sqlite3.Connection, document: Document, directory: Path) -> None:
    make_private_directory(directory)
    prune(directory, MAX_KEPT_BYTES)
    with replacing(_path_of(document, directory)) as new:
        try:
            with contextlib.closing(sqlite3.connect(new)) as kept:
                kept.execute("PRAGMA journal_mode = OFF")  # a full disk would leave it
                database.backup(kept)
        except sqlite3.Error as error:
            raise OSError(str(error)) from error


def _path_of(document: Document, directory: Path) -> Path:
    return directory / f"{document.digest}{SUFFIX}"


def _made(documents: Sequence[Document], progress: Progress) -> sqlite3.Connection:
    """In SQLite's own temporary file (in memory while it is small), which no interrupt leaves."""
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    total_bytes, done_bytes, number = sum(each.size_bytes for each in documents), 0, 0
    try:
        database.execute("PRAGMA journal_mode = OFF")
        database.executescript(SCHEMA)
        database.execute("BEGIN")
        for place, document in enumerate(documents):
            for span, data in split(document):
                row = (number, place, *astuple(span), zlib.crc32(data))
                database.execute("INSERT INTO passages VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                text = " ".join(words(data.decode("utf-8", "replace")))
                database.execute("INSERT INTO texts (rowid, words) VALUES (?, ?)", (number, text))
                if number % ROWS == 0:
                    progress(done_bytes + span.end, total_bytes)
                number += 1
            done_bytes += document.size_bytes
        database.execute("COMMIT")
        progress(total_bytes, total_bytes)
    except sqlite3.Error as error:
        raise OSError(str(error)) from error
    return database


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise Outdated(str(error)) from error
