"""Reads the rows of a damaged SQLite database page by page, without its trees.

A tree that is damaged near its root hides all rows below. The pages at its ends hold the rows
themselves: each that is intact yields its rows.
Source: https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mlxchat.files import open_to_read
from mlxchat.sessions.log import committed_pages
from mlxchat.sessions.tables import PAGE_BYTES, Value

LEAF_OF_A_TABLE = 0x0D
FIRST_PAGE_HEADER_BYTES = 100
# Serial types of integers, and their sizes in bytes.
INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


def rows(path: Path) -> Iterator[tuple[int, tuple[Value, ...]]]:
    """The id and the columns of every row of any table that can still be read, in no order.
    Raises OSError."""
    with open_to_read(path) as file:
        pages = _Pages(file, Path(f"{path}-wal"))
        for number in range(1, len(pages) + 1):
            yield from _rows_in(pages, number)


class _Pages:
    """The pages of the file, numbered from 1; those in the write-ahead log replace its own."""

    def __init__(self, file: BinaryIO, log: Path) -> None:
        self._file = file
        self._newer = committed_pages(log)
        file_pages = file.seek(0, 2) // PAGE_BYTES
        # A damaged number could be anything.
        most = file_pages + len(self._newer)
        self._count = max([file_pages, *(number for number in self._newer if number <= most)])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> bytes:
        if number in self._newer:
            return self._newer[number]
        self._file.seek((number - 1) * PAGE_BYTES)
        return self._file.read(PAGE_BYTES)


def _rows_in(pages: _Pages, number: int) -> Iterator[tuple[int, tuple[Value, ...]]]:
    page = pages[number]
    start = FIRST_PAGE_HEADER_BYTES if number == 1 else 0
    if len(page) < PAGE_BYTES or page[start] != LEAF_OF_A_TABLE:
        return
    (count,) = struct.unpack_from(">H", page, start + 3)
    for i in range(min(count, PAGE_BYTES // 4)):
        try:
            (at,) = struct.unpack_from(">H", page, start + 8 + 2 * i)
            yield _row_at(pages, page, at)
        except (IndexError, ValueError, struct.error):
            continue


def _row_at(pages: _Pages, page: bytes, at: int) -> tuple[int, tuple[Value, ...]]:
    """The row in the cell at that offset. Raises IndexError, ValueError or struct.error."""
    payload_bytes, at = _number(page, at)
    id_, at = _number(page, at)
    local_bytes = _local_bytes(payload_bytes)
    payload = bytearray(page[at : at + local_bytes])
    if local_bytes < payload_bytes:
        (following,) = struct.unpack_from(">I", page, at + local_bytes)
        while len(payload) < payload_bytes:
            if not 0 < following <= len(pages):
                raise ValueError(following)
            overflow = pages[following]
            (following,) = struct.unpack_from(">I", overflow)
            payload += overflow[4 : 4 + payload_bytes - len(payload)]
    return id_, _values(bytes(payload))


def _local_bytes(payload_bytes: int) -> int:
    """How much of a row is in its own page; the rest is in a chain of others."""
    if payload_bytes <= PAGE_BYTES - 35:
        return payload_bytes
    least = (PAGE_BYTES - 12) * 32 // 255 - 23
    local = least + (payload_bytes - least) % (PAGE_BYTES - 4)
    return local if local <= PAGE_BYTES - 35 else least


def _values(payload: bytes) -> tuple[Value, ...]:
    """The columns after the id, which SQLite stores as NULL."""
    header_bytes, at = _number(payload, 0)
    values: list[Value] = []
    body = header_bytes
    while at < header_bytes:
        kind, at = _number(payload, at)
        value, size = _value(payload, body, kind)
        values.append(value)
        body += size
    if body > len(payload):
        raise ValueError(body)
    return tuple(values[1:])


def _value(payload: bytes, at: int, kind: int) -> tuple[Value, int]:
    """The value of that kind, and its size in bytes."""
    if kind in INTEGER_BYTES:
        size = INTEGER_BYTES[kind]
        return int.from_bytes(payload[at : at + size], "big", signed=True), size
    if kind in (8, 9):
        return kind - 8, 0
    if kind >= 12:
        size = (kind - 12) // 2
        data = payload[at : at + size]
        return (data.decode() if kind % 2 else data), size
    if kind:
        raise ValueError(kind)
    return None, 0


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number in SQLite's variable length, and the offset after it."""
    value = 0
    for i in range(9):
        byte = data[at + i]
        if i == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + i + 1
    raise AssertionError
