"""Splits a document into passages: at paragraphs, else at lines, sentences or words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

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
