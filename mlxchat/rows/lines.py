"""The lines of a binary stream, in bounded memory."""

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

from mlxchat.errors import InputError
from mlxchat.files import reported_as
from mlxchat.text.documents import UTF16_MARKS
from mlxchat.units import format_bytes

# Old programs end a line with a carriage return alone.
_LINE = re.compile(rb"[^\r]*\r\n?|[^\r]+")

# A longer line, record or document is an error.
MAX_LINE_BYTES = 16_000_000

TOO_LONG = f"longer than {format_bytes(MAX_LINE_BYTES)}"


def bounded_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield the numbers and bytes of the lines, with their ends; None for a line that is too
    long, which is read past in pieces. Raises InputError for UTF-16, and if reading fails."""
    number, rest, is_first, is_long = 0, b"", True, False
    piece: bytes | None = None
    while piece != b"":
        piece = _read_line(stream, MAX_LINE_BYTES)
        data = rest + piece
        if is_first:
            is_first = False
            if piece.startswith(UTF16_MARKS):
                raise InputError("the input is UTF-16: convert it to UTF-8 first")
            data = piece.removeprefix(codecs.BOM_UTF8)
        lines = _LINE.findall(data)
        # Only a line feed ends a line for certain: one may follow a carriage return.
        rest = lines.pop() if piece and lines and not lines[-1].endswith(b"\n") else b""
        for each in lines:
            number += 1
            yield number, None if is_long or len(each) > MAX_LINE_BYTES else each
            is_long = False
        if len(rest) > MAX_LINE_BYTES:
            is_long, rest = True, rest[-1:]


def _read_line(stream: BinaryIO, max_bytes: int) -> bytes:
    with reported_as(InputError, "read the input"):
        return stream.readline(max_bytes)
