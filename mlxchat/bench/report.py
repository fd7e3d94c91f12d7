"""Measurements, and tables of them for others to display."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlxchat.bench.paired import Spread, is_tie, is_unclear

# From one run or, as a spread, from several; None if there is nothing to compare with.
Value = Spread | float | str | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Measurements of one `kind`, by name. Units are in the names; `*_ratio` compares two sides."""

    kind: str
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are displayed."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def one_after_another(
    parts: Iterable[Iterator[Sequence[Figures]]],
) -> Iterator[Sequence[Figures]]:
    """Each part yields all its figures so far; yield those of all parts so far."""
    before: list[Figures] = []
    for part in parts:
        found: Sequence[Figures] = ()
        for found in part:
            yield [*before, *found]
        before += found


def tables(found: Sequence[Figures], titles: Mapping[str, str]) -> Iterator[Table]:
    """One for each kind. What is the same in all rows is in the title, not in a column."""
    for kind in dict.fromkeys(each.kind for each in found):
        values = [each.values for each in found if each.kind == kind]
        cells = {name: [_cell(name, each[name]) for each in values] for name in values[0]}
        columns = {name: column for name, column in cells.items() if any(column)}
        shared = {
            name: column.pop()
            for name, column in columns.items()
            if len(values) > 1 == len({*column}) and not isinstance(values[0][name], Spread)
        }
        columns = {name: column for name, column in columns.items() if name not in shared}
        runs = {each.runs for each in values[0].values() if isinstance(each, Spread)}
        same = [f"{_words(name)} {cell}" for name, cell in shared.items()]
        same += [f"{number} runs each" for number in runs if number > 1]
        yield Table(
            ": ".join(filter(None, (titles[kind], ", ".join(same)))),
            tuple(_words(name).upper() for name in columns),
            tuple(zip(*columns.values(), strict=True)),
        )


def _words(name: str) -> str:
    return name.replace("_bytes", " MB").replace("_", " ")


def _cell(name: str, value: Value) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    unit = 1e6 if name.endswith("_bytes") else 1
    if not isinstance(value, Spread):
        return f"{value:,}" if isinstance(value, int) and unit == 1 else figure(value / unit)
    cell = figure(value.median / unit)
    if value.runs > 1:
        cell += f" ({figure(value.min / unit)}–{figure(value.max / unit)})"
    if name.endswith("_ratio"):
        cell += " tie" if is_tie(value) else " unclear" if is_unclear(value) else ""
    return cell


def figure(value: float) -> str:
    """Three significant digits, or all digits before the point: 0.0712, 17.2, 1,250."""
    if value == 0 or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")
