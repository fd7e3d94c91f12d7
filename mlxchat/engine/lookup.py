"""Looks up what followed the latest tokens when they last appeared.

Source: prompt lookup decoding (Saxena, 2023), and the hash chains of LZ77 compressors.
"""

from dataclasses import dataclass

from mlxchat.text.spans import TokenIds

# Tokens that must match, at least.
KEY = 3

# A match is not extended backwards beyond this many tokens.
MAX_MATCH = 32

# Earlier places that are compared, the latest first.
CANDIDATES = 8

# The number of tokens remembered, at about 150 bytes each.
CAPACITY = 1 << 18

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Match:
    """`length` tokens (at most MAX_MATCH) that also appeared earlier, before place `next`."""

    length: int
    next: int


class History:
    """The latest tokens read and generated, indexed by each three in succession.

    Looking up a token takes constant time. At `capacity` tokens, the older half is forgotten;
    places, which count from the oldest token, then change.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._clear()

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, ids: TokenIds) -> None:
        """Add tokens `(T,)`."""
        for id_ in ids[-self._capacity :].tolist():
            self.add(id_)

    def add(self, id_: int) -> None:
        """Add one token."""
        if len(self) == self._capacity:
            kept = self._ids[self._capacity // 2 :]
            self._clear()
            for each in kept:
                self.add(each)
        key = (*self._ids[1 - KEY :], id_)
        self._earlier.append(self._latest.get(key, NOWHERE))
        self._latest[key] = len(self)
        self._ids.append(id_)

    def match(self) -> Match | None:
        """The longest match of the latest tokens, and of several the latest."""
        best: Match | None = None
        place = end = len(self) - 1
        for _ in range(CANDIDATES):
            if place == NOWHERE:
                break
            place = self._earlier[place]
            length = self._common(place, end)
            if length >= KEY and (best is None or length > best.length):
                best = Match(length, place + 1)
                if length == MAX_MATCH:
                    break
        return best

    def following(self, place: int, count: int) -> list[int]:
        """Up to `count` tokens from `place` on, in order."""
        return self._ids[place : place + count]

    def _common(self, place: int, end: int) -> int:
        """How many tokens up to `place` equal those up to `end`."""
        most = min(MAX_MATCH, place + 1)
        for n in range(most):
            if self._ids[place - n] != self._ids[end - n]:
                return n
        return most

    def _clear(self) -> None:
        self._ids: list[int] = []
        # For each place, the one before with the same key; for each key, its latest place.
        self._earlier: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}
