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
    number = 0
    is_first = True
    while line := _read_line(stream, MAX_LINE_BYTES + 1):
        if is_first:
            is_first = False
            if line.startswith(UTF16_MARKS):
                raise InputError("the input is UTF-16: convert it to UTF-8 first")
            line = line.removeprefix(codecs.BOM_UTF8)
        if len(line) <= MAX_LINE_BYTES:
            for each in _LINE.findall(line):
                number += 1
                yield number, each
            continue
        number += 1
        while line and not line.endswith(b"\n"):
            line = _read_line(stream, MAX_LINE_BYTES)
        yield number, None


def _read_line(stream: BinaryIO, max_bytes: int) -> bytes:
    with reported_as(InputError, "read the input"):
        return stream.readline(max_bytes)
