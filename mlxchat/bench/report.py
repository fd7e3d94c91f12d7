"""Tables and charts as data, made from a benchmark's figures for others to display."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

from mlxchat.bench.paired import Spread


class Figures(Protocol):
    """A frozen dataclass of measurements. `kind` distinguishes those of one benchmark."""

    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are displayed; `notes` are sentences about them."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def without_empty_columns(self) -> "Table":
        """Drop columns that were not measured."""
        kept = [n for n in range(len(self.headers)) if any(row[n] for row in self.rows)]
        headers = tuple(self.headers[n] for n in kept)
        return replace(
            self, headers=headers, rows=tuple(tuple(row[n] for n in kept) for row in self.rows)
        )


@dataclass(frozen=True, slots=True)
class Point:
    """A value in a series, and the spread of its runs."""

    x: float | str
    y: float
    min: float
    max: float

    @classmethod
    def of(cls, x: float | str, spread: Spread, unit: float = 1.0) -> "Point":
        """In multiples of the spread's unit: 1e6 for megabytes."""
        return cls(x, spread.median / unit, spread.min / unit, spread.max / unit)

    @classmethod
    def single(cls, x: float | str, y: float) -> "Point":
        return cls(x, y, y, y)


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """`name` is the name of its files. The value axis starts at zero. x is a number if `kind` is
    "lines", a name if it is "bars"."""

    name: str
    title: str
    x: str
    y: str
    kind: Literal["lines", "bars"]
    series: tuple[Series, ...]


def series(points: Iterable[tuple[str, Point]]) -> tuple[Series, ...]:
    """Group points by the label of their series, in order of first appearance."""
    found: dict[str, list[Point]] = {}
    for label, point in points:
        found.setdefault(label, []).append(point)
    return tuple(Series(label, tuple(each)) for label, each in found.items())


def figure(value: float) -> str:
    """Three significant digits, or all digits before the point: 0.0712, 17.2, 1,250."""
    if value == 0 or abs(value) >= 999.5:
        return f"{value:,.0f}"
    digits = next(
        (n for n, limit in ((0, 99.95), (1, 9.995), (2, 0.9995)) if abs(value) >= limit), 3
    )
    return f"{value:.{digits}f}"


def range_of(spread: Spread | None, unit: float = 1.0) -> str:
    """From minimum to maximum; empty for a single run."""
    if spread is None or spread.runs < 2:
        return ""
    return f"{figure(spread.min / unit)}–{figure(spread.max / unit)}"


def middle(spread: Spread | None, unit: float = 1.0) -> str:
    return "" if spread is None else figure(spread.median / unit)
