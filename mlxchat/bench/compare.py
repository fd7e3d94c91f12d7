"""Compares sides that run in turn, A B A B, so that other load on the machine affects all alike;
and their figures: median, spread, ratio to another side, as a table and as lines of JSON.
"""

import gc
import json
import os
import platform as system_platform
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import version
from typing import Any, Generic, TypeVar

import mlx.core as mx

from mlxchat import platform
from mlxchat.bench.subject import Subject
from mlxchat.models.skeleton import named_parameters
from mlxchat.paths import __version__

# Number done, total number, and what is being measured now.
Tick = Callable[[int, int, str], None]

# A ratio this close to 1 is a tie, however well the runs agree.
TIE = 0.02

Record = dict[str, Any]

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Spread:
    """The runs of one side: median, minimum, maximum, and their number."""

    median: float
    min: float
    max: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values), len(values))


# From one run or, as a spread, from several; None if there is nothing to compare with. Units are in
# the names; `*_ratio` compares two sides.
Figures = Mapping[str, Spread | float | str | None]


@dataclass(frozen=True, slots=True)
class Side(Generic[V]):
    """One of the things to compare. `warm_up` does, untimed, the work that only a first run has."""

    name: str
    run: Callable[[], V]
    warm_up: Callable[[], object]


@dataclass
class Comparison(Generic[K, V]):
    """Sides that are each to run in all `rounds`, and what becomes of their `runs`: figures of one
    `kind`, from each side by its key."""

    kind: str
    title: str
    sides: Mapping[K, Side[V]]
    rounds: int
    figures_of: Callable[[K, Mapping[K, Sequence[V]]], Sequence[Figures]]
    runs: dict[K, list[V]] = field(default_factory=dict[K, list[V]])

    def run(self, tick: Tick) -> None:
        """Run all sides; if that is interrupted, `runs` are those so far."""
        for runs in interleave(self.sides, self.rounds, tick):
            self.runs = runs

    def figures(self) -> list[Figures]:
        return [each for key in self.runs for each in self.figures_of(key, self.runs)]


def interleave(sides: Mapping[K, Side[V]], rounds: int, tick: Tick) -> Iterator[dict[K, list[V]]]:
    """Warm up all sides, then run each once per round, in order. After each run, yield the results
    so far of the sides that have some. Before each run, free the memory of the previous one."""
    total = rounds * len(sides)
    for side in sides.values():
        tick(0, total, f"warming up: {side.name}")
        side.warm_up()
    values: dict[K, list[V]] = {}
    for done, (key, side) in enumerate(list(sides.items()) * rounds):
        tick(done, total, side.name)
        settle()
        value = side.run()
        values.setdefault(key, []).append(value)
        yield values
    tick(total, total, "")


def settle() -> None:
    """Free the memory that an earlier run has left."""
    gc.collect()
    mx.synchronize()
    mx.clear_cache()


def ratios(values: Sequence[float], others: Sequence[float]) -> Spread | None:
    """Each run's ratio to the other side's in the same round; none before there is a pair."""
    pairs = [a / b for a, b in zip(values, others, strict=False) if b]
    return Spread.of(pairs) if pairs else None


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def table(title: str, figures: Sequence[Figures]) -> Table:
    """What is the same in all rows is in the title, not in a column."""
    cells = {name: [_cell(name, each[name]) for each in figures] for name in figures[0]}
    columns = {name: column for name, column in cells.items() if any(column)}
    same: list[str] = []
    for name, column in list(columns.items()):
        if len(figures) > 1 == len({*column}) and not isinstance(figures[0][name], Spread):
            same.append(f"{_words(name)} {columns.pop(name)[0]}")
    runs = [each.runs for row in figures for each in row.values() if isinstance(each, Spread)]
    if max(runs, default=1) > 1:
        same.append(f"{' to '.join(dict.fromkeys([str(min(runs)), str(max(runs))]))} runs each")
    return Table(
        ": ".join(filter(None, (title, ", ".join(same)))),
        tuple(_words(name).upper() for name in columns),
        tuple(zip(*columns.values(), strict=True)),
    )


def _words(name: str) -> str:
    return name.replace("_bytes", " MB").replace("_", " ")


def _cell(name: str, value: Spread | float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    unit = 1e6 if name.endswith("_bytes") else 1
    if not isinstance(value, Spread):
        return f"{value:,}"
    cell = _digits(value.median / unit)
    if value.runs > 1:
        cell += f" ({_digits(value.min / unit)}–{_digits(value.max / unit)})"
    if name.endswith("_ratio") and abs(value.median - 1) <= TIE:
        return f"{cell} tie"
    # Whether the runs disagree about which side has more.
    return f"{cell} unclear" if name.endswith("_ratio") and value.min <= 1 <= value.max else cell


def _digits(value: float) -> str:
    """Three significant digits, or all digits before the point: 0.0712, 17.2, 1,250."""
    if value == 0 or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


# One line for each figure, with the machine and the circumstances of its measurement, for programs
# that track figures over time. manual/benchmarks.md documents the fields.


def this_machine() -> Record:
    """Its current state, on the chosen device. `load`: programs wanting a core, last minute."""
    uname = system_platform.uname()
    return {
        "system": f"{uname.system} {uname.release} {uname.machine}",
        "processor": platform.device_name(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": platform.total_memory_bytes(),
        "load": round(os.getloadavg()[0], 2),
        "device": "gpu" if platform.on_gpu() else "cpu",
        "backend": platform.backend_name(),
        "blas": platform.blas_name(),
        "python": system_platform.python_version(),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "mlxchat": __version__,
    }


def circumstances(bench: str, subject: Subject, machine: Record, *, complete: bool) -> Record:
    """What all figures of a benchmark have in common, as it ends. If every run loads the model
    itself, `dtype` is the value of the option, and `weights_bytes` is None."""
    dtype, weights_bytes = subject.dtype, None
    if "model" in vars(subject):
        dtype = str(subject.model.dtype).rpartition(".")[2]
        weights_bytes = sum(array.nbytes for _, array in named_parameters(subject.model.network))
    return {
        "bench": bench,
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(["mlxchat", *sys.argv[1:]]),
        "complete": complete,
        "quick": subject.quick,
        "model": subject.name,
        "dtype": dtype,
        "weights_bytes": weights_bytes,
        "machine": machine,
    }


def in_words(common: Record) -> str:
    """The circumstances in one line for people."""
    incomplete = "" if common["complete"] else ", not complete"
    return (
        "{command}{incomplete}: {model}, {dtype}, {processor}, {cores} cores, {backend}, BLAS "
        "{blas}; mlxchat {mlxchat}, mlx {mlx}, mlx-lm {mlx_lm}, Python {python}"
    ).format(**common | common["machine"], incomplete=incomplete)


def lines(found: Sequence[Comparison[Any, Any]], common: Record) -> list[str]:
    """JSON objects, one per figure, without line ends."""
    return [
        json.dumps(common | {"kind": each.kind, "figures": figures}, default=asdict)
        for each in found
        for figures in each.figures()
    ]
