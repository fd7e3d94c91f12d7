"""The serials of a session's turns, which only increase, as ranges: "1-12,14"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Self


@dataclass(frozen=True, slots=True)
class Serials:
    """Ascending; thousands take no more space than a few, unless many between were undone."""

    ranges: tuple[range, ...] = ()

    @classmethod
    def of(cls, serials: Iterable[int]) -> Self:
        found: list[range] = []
        for serial in sorted(serials):
            if found and found[-1].stop == serial:
                found[-1] = range(found[-1].start, serial + 1)
            else:
                found.append(range(serial, serial + 1))
        return cls(tuple(found))

    @classmethod
    def parse(cls, text: str) -> Self:
        bounds = [each.partition("-") for each in text.split(",") if each]
        return cls(tuple(range(int(first), int(last or first) + 1) for first, _, last in bounds))

    def __str__(self) -> str:
        return ",".join(
            str(each.start) if len(each) == 1 else f"{each.start}-{each[-1]}"
            for each in self.ranges
        )

    def __len__(self) -> int:
        return sum(map(len, self.ranges))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.ranges)

    def number_of(self, serial: int) -> int | None:
        """The number of the turn, counted from 1; None if it is not among them."""
        before = 0
        for each in self.ranges:
            if serial in each:
                return before + each.index(serial) + 1
            before += len(each)
        return None
