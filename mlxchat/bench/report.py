"""Tables and charts as data: what a sub-bench makes of its figures, for whoever can show them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

from mlxchat.bench.paired import Spread


class Figures(Protocol):
    """A frozen dataclass that a sub-bench measures. `kind` tells those of one bench apart."""

    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as people read them; `notes` are sentences about them."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def without_empty_columns(self) -> "Table":
        """Of what was not measured nothing is said."""
        kept = [n for n in range(len(self.headers)) if any(row[n] for row in self.rows)]
        headers = tuple(self.headers[n] for n in kept)
        return replace(
            self, headers=headers, rows=tuple(tuple(row[n] for n in kept) for row in self.rows)
        )


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a series, and how far the runs behind it lie apart."""

    x: float | str
    y: float
    least: float
    most: float

    @classmethod
    def of(cls, x: float | str, spread: Spread, unit: float = 1.0) -> "Point":
        """In so many times the spread's own unit: 1e6 for megabytes."""
        return cls(x, spread.median / unit, spread.least / unit, spread.most / unit)

    @classmethod
    def single(cls, x: float | str, y: float) -> "Point":
        return cls(x, y, y, y)


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """`name` is that of its files. The values are counted from zero; `kind` "lines" needs numbers
    as x, for "bars" they are names."""

    name: str
    title: str
    x: str
    y: str
    kind: Literal["lines", "bars"]
    series: tuple[Series, ...]


def series(points: Iterable[tuple[str, Point]]) -> tuple[Series, ...]:
    """Points that come with the label of their series, each label in the order of its first."""
    found: dict[str, list[Point]] = {}
    for label, point in points:
        found.setdefault(label, []).append(point)
    return tuple(Series(label, tuple(each)) for label, each in found.items())


def figure(value: float) -> str:
    """Three digits, as many before the point as there are: 0.0712, 17.2, 1,250."""
    if value == 0 or abs(value) >= 999.5:
        return f"{value:,.0f}"
    digits = next(
        (n for n, limit in ((0, 99.95), (1, 9.995), (2, 0.9995)) if abs(value) >= limit), 3
    )
    return f"{value:.{digits}f}"


def range_of(spread: Spread | None, unit: float = 1.0) -> str:
    """From the least to the most; nothing where there was one run."""
    if spread is None or spread.runs < 2:
        return ""
    return f"{figure(spread.least / unit)}–{figure(spread.most / unit)}"


def middle(spread: Spread | None, unit: float = 1.0) -> str:
    return "" if spread is None else figure(spread.median / unit)
