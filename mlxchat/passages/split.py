"""Splits a document into passages: at paragraphs, else at lines, sentences or words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlxchat.text.documents import Document

# A passage of this size, some 50 tokens, may end with a paragraph...
MIN_BYTES = 200
# ... and none is larger: some 150 tokens, in scripts of one or of three bytes a character.
MAX_BYTES = 600
_SENTENCE_END = re.compile(rb"[.!?;](?=\s)|\xe3\x80\x82|\xef\xbc[\x81\x9f]")
_CONTINUES = 0b1000_0000


@dataclass(frozen=True, slots=True)
class Span:
    """The place of a passage: bytes from `start` to `end`, lines counted from 1."""

    start: int
    end: int
    first_line: int
    last_line: int


def split(document: Document) -> Iterator[tuple[Span, bytes]]:
    """Yield the passages in order, with their text. Blank lines between them are left out."""
    spans: list[Span] = []
    pieces: list[bytes] = []
    for span, piece in _pieces(document):
        is_blank = not piece.strip()
        size = spans[-1].end - spans[0].start if spans else 0
        if spans and (size >= MIN_BYTES if is_blank else size + len(piece) > MAX_BYTES):
            yield _joined(spans, pieces)
            spans, pieces = [], []
        if spans or not is_blank:
            spans.append(span)
            pieces.append(piece)
    if spans:
        yield _joined(spans, pieces)


def _joined(spans: list[Span], pieces: list[bytes]) -> tuple[Span, bytes]:
    while not pieces[-1].strip():
        spans.pop()
        pieces.pop()
    span = Span(spans[0].start, spans[-1].end, spans[0].first_line, spans[-1].last_line)
    return span, b"".join(pieces)


def _pieces(document: Document) -> Iterator[tuple[Span, bytes]]:
    """The lines, or parts of them, none larger than a passage."""
    offset, number, rest = 0, 1, b""
    for line in document.lines():
        rest += line
        is_whole = line.endswith(b"\n")
        done = 0
        for size in _sizes(rest, to_its_end=is_whole):
            yield Span(offset, offset + size, number, number), rest[done : done + size]
            done, offset = done + size, offset + size
        rest = rest[done:]
        number += is_whole
    for size in _sizes(rest, to_its_end=True):
        yield Span(offset, offset + size, number, number), rest[:size]
        rest, offset = rest[size:], offset + size


def _sizes(line: bytes, *, to_its_end: bool) -> Iterator[int]:
    """The sizes of the line's pieces; the last one only if the line has come to its end."""
    done = 0
    while len(line) - done > (0 if to_its_end else MAX_BYTES):
        size = _end_of_piece(line[done : done + MAX_BYTES + 1])
        yield size
        done += size


def _end_of_piece(line: bytes) -> int:
    """Where to cut a line of more than MAX_BYTES, given the first of them; its length if it has
    no more."""
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
