"""Looks up what followed the latest tokens when they last appeared.

Source: prompt lookup decoding (Saxena, 2023), and the hash chains of LZ77 compressors.
"""

from array import array
from dataclasses import dataclass

import numpy as np

from mlxchat.text.spans import TokenIds

# Tokens that must match, at least.
KEY = 3

# A match is not extended backwards beyond this many tokens.
MAX_MATCH = 32

# Earlier places that are compared, the latest first.
CANDIDATES = 8

# The number of tokens remembered, at 20 bytes each.
CAPACITY = 1 << 20

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Match:
    """`length` tokens (at most MAX_MATCH) that also appeared earlier, before place `next`."""

    length: int
    next: int


class History:
    """The latest `capacity` tokens read and generated, indexed by each three in succession.

    Adding and looking up a token takes constant time. Memory grows with the tokens, to 20 bytes for
    each of `capacity`: 20 MiB for a million tokens and more.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        assert capacity & (capacity - 1) == 0, "not a power of two"
        self._capacity = capacity
        self._count = 0
        self._allocate(min(1 << 10, capacity))

    def __len__(self) -> int:
        return min(self._count, self._capacity)

    @property
    def nbytes(self) -> int:
        tables = (self._ids, self._earlier, self._latest)
        return sum(len(table) * table.itemsize for table in tables)

    def extend(self, ids: TokenIds) -> None:
        """Add tokens `(T,)`."""
        self._count += max(len(ids) - self._capacity, 0)
        ids = ids[-self._capacity :]
        wanted = min(len(self) + len(ids), self._capacity)
        if wanted > len(self._ids):
            self._grow(1 << (wanted - 1).bit_length())
        first = self._count
        places = np.arange(first, first + len(ids))
        np.frombuffer(self._ids, np.int32)[places & self._mask] = ids
        self._count += len(ids)
        self._index(first)

    def add(self, id_: int) -> None:
        """Add one token."""
        if self._count == len(self._ids) < self._capacity:
            self._grow(2 * len(self._ids))
        self._ids[self._count & self._mask] = id_
        self._count += 1
        if self._count >= KEY:
            slot = self._slot(self._count - 1)
            self._earlier[(self._count - 1) & self._mask] = self._latest[slot]
            self._latest[slot] = self._count - 1

    def match(self) -> Match | None:
        """The longest match of the latest tokens, and of several the latest."""
        if self._count < KEY:
            return None
        end = self._count - 1
        best: Match | None = None
        place = end
        for _ in range(CANDIDATES):
            place = self._earlier[place & self._mask]
            if place < self._oldest + KEY - 1:
                break
            length = self._common(place, end)
            if length >= KEY and (best is None or length > best.length):
                best = Match(length, place + 1)
                if length == MAX_MATCH:
                    break
        return best

    def following(self, place: int, count: int) -> list[int]:
        """Up to `count` tokens from `place` on, in order."""
        stop = min(place + count, self._count)
        return [self._ids[each & self._mask] for each in range(place, stop)]

    @property
    def _oldest(self) -> int:
        return self._count - len(self)

    def _common(self, place: int, end: int) -> int:
        """How many tokens up to `place` equal those up to `end`."""
        ids, mask = self._ids, self._mask
        most = min(MAX_MATCH, place - self._oldest + 1)
        for n in range(most):
            if ids[(place - n) & mask] != ids[(end - n) & mask]:
                return n
        return most

    def _slot(self, last: int) -> int:
        """The slot of the table for the key that ends at place `last`."""
        key = 0
        for place in range(last - KEY + 1, last + 1):
            key = (key * 0x9E3779B1 + self._ids[place & self._mask]) & 0xFFFFFFFF
        return key * 0x85EBCA6B % 2**32 >> self._shift

    def _slots(self, lasts: np.ndarray) -> np.ndarray:
        held = np.frombuffer(self._ids, np.int32)
        keys = np.zeros(len(lasts), np.uint64)
        for back in range(KEY - 1, -1, -1):
            ids = held[(lasts - back) & self._mask].astype(np.uint64)
            keys = (keys * 0x9E3779B1 + ids) & 0xFFFFFFFF
        return (keys * 0x85EBCA6B % 2**32 >> np.uint64(self._shift)).astype(np.int64)

    def _index(self, first: int) -> None:
        """Index the keys that end at places `first` and later."""
        lasts = np.arange(max(first, self._oldest + KEY - 1), self._count)
        if not len(lasts):
            return
        slots = self._slots(lasts)
        order = np.argsort(slots, kind="stable")
        slots, lasts = slots[order], lasts[order]
        begins = np.append(True, slots[1:] != slots[:-1])
        before = np.append(NOWHERE, lasts[:-1])
        earlier, latest = (np.frombuffer(each, np.int64) for each in (self._earlier, self._latest))
        earlier[lasts & self._mask] = np.where(begins, latest[slots], before)
        ends = np.append(begins[1:], True)
        latest[slots[ends]] = lasts[ends]

    def _grow(self, capacity: int) -> None:
        held = self._ids[: self._count]
        self._allocate(min(capacity, self._capacity))
        self._ids[: len(held)] = held
        self._index(0)

    def _allocate(self, capacity: int) -> None:
        self._mask = capacity - 1
        self._shift = 32 - self._mask.bit_length()
        self._ids = array("i", [0]) * capacity
        # For each place, the one before with the same key; for each slot, the latest place.
        self._earlier = array("q", [NOWHERE]) * capacity
        self._latest = array("q", [NOWHERE]) * capacity
