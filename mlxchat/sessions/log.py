"""Reads SQLite's write-ahead log: its pages, and whether it is damaged.

SQLite takes a damaged frame for the end of the log. Every transaction after it is gone, silently.
Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from mlxchat.files import open_to_read
from mlxchat.sessions.tables import PAGE_BYTES

HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
FRAME_BYTES = FRAME_HEADER_BYTES + PAGE_BYTES
# What the magic number says of the byte order of the checksums.
LITTLE_ENDIAN = 0x377F0682

Sums = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Frame:
    data: bytes

    @property
    def number(self) -> int:
        """Of its page."""
        return self._integers[0]

    @property
    def commits(self) -> bool:
        return self._integers[1] != 0

    @property
    def salt(self) -> bytes:
        return self.data[8:16]

    @property
    def sums(self) -> Sums:
        return self._integers[4], self._integers[5]

    @property
    def page(self) -> bytes:
        return self.data[FRAME_HEADER_BYTES:]

    @property
    def _integers(self) -> tuple[int, ...]:
        return struct.unpack(">6I", self.data[:FRAME_HEADER_BYTES])


def committed_pages(log: Path) -> dict[int, bytes]:
    """The latest committed version of each page in the log, if there is one, damaged or not: rows
    have checksums of their own."""
    header, frames = _read(log)
    salt = _salt(header, frames)
    committed: dict[int, bytes] = {}
    transaction: dict[int, bytes] = {}
    for frame in frames:
        # Frames of an earlier log, which this one has begun to overwrite, have another salt.
        if frame.salt != salt:
            continue
        transaction[frame.number] = frame.page
        if frame.commits:
            committed |= transaction
            transaction = {}
    return committed


def is_damaged(log: Path) -> bool:
    """Whether transactions follow a damaged frame. Not if the last one was cut off, by a kill or a
    power cut: it was never committed."""
    header, frames = _read(log)
    if not frames:
        return False
    salt = _salt(header, frames)
    order = "<" if _magic(header) == LITTLE_ENDIAN else ">"
    sums = _sums(header[:24], (0, 0), order)
    sound = header[16:24] == salt and sums == struct.unpack(">2I", header[24:32])
    for frame in frames:
        if sound:
            sums = _sums(frame.page, _sums(frame.data[:8], sums, order), order)
            sound = frame.salt == salt and sums == frame.sums
        elif frame.salt == salt and frame.commits:
            return True
    return False


def _read(log: Path) -> tuple[bytes, list[_Frame]]:
    try:
        with open_to_read(log) as file:
            return file.read(HEADER_BYTES), list(_frames(iter(lambda: file.read(FRAME_BYTES), b"")))
    except OSError:
        return b"", []


def _frames(pieces: Iterator[bytes]) -> Iterator[_Frame]:
    for piece in pieces:
        if len(piece) == FRAME_BYTES:
            yield _Frame(piece)


def _salt(header: bytes, frames: list[_Frame]) -> bytes:
    """Of this log: that of most frames from the first one on, should the header be damaged."""
    salts = {frame.salt for frame in frames}
    return header[16:24] if header[16:24] in salts or not frames else frames[0].salt


def _magic(header: bytes) -> int:
    return int.from_bytes(header[:4], "big")


def _sums(data: bytes, before: Sums, order: str) -> Sums:
    """SQLite's checksum: for each pair of words, `a += x + b; b += y + a`, modulo 2 ** 32. Linear,
    so that all pairs can be weighed at once."""
    words = np.frombuffer(data, f"{order}u4").astype(np.uint32).reshape(-1, 2)
    weights, power = _weights(len(words))
    # (a, b) after a pair: a' = a + b + x, b' = a + 2 b + x + y.
    terms = np.stack([words[:, 0], words[:, 0] + words[:, 1]], axis=1)
    a, b = (weights * terms[:, None, :]).sum(axis=(0, 2), dtype=np.uint32).tolist()
    (p, q), (r, s) = power
    return (a + p * before[0] + q * before[1]) % 2**32, (b + r * before[0] + s * before[1]) % 2**32


@cache
def _weights(pairs: int) -> tuple[np.ndarray, list[list[int]]]:
    """The powers of ((1, 1), (1, 2)) by which each pair is multiplied, `(pairs, 2, 2)`, and the one
    for what came before."""
    p, q, r, s = 1, 0, 0, 1
    found = np.zeros((pairs, 2, 2), np.uint32)
    for n in range(pairs - 1, -1, -1):
        found[n] = ((p, q), (r, s))
        p, q, r, s = ((p + q), (p + 2 * q), (r + s), (r + 2 * s))
        p, q, r, s = p % 2**32, q % 2**32, r % 2**32, s % 2**32
    return found, [[p, q], [r, s]]
