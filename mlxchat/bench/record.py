"""One line for each figure, with the circumstances of its measurement, for programs that track
figures over time. manual/benchmarks.md documents the fields."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlxchat.bench.machine import Machine
from mlxchat.errors import OutputError
from mlxchat.files import append_line, json_line, open_to_append, reported_as


@dataclass(frozen=True, slots=True)
class Circumstances:
    """`time` is when the benchmark ended. If every run loads the model itself, `dtype` is the value
    of the option, and `weights_bytes` is None. `complete`: it was not interrupted."""

    bench: str
    time: str
    command: str
    complete: bool
    quick: bool
    model: str
    dtype: str
    weights_bytes: int | None
    text: str | None
    machine: Machine


def lines(found: Sequence[Any], circumstances: Circumstances) -> Iterator[str]:
    """JSON objects, one per figure, without line ends."""
    for figures in found:
        record = asdict(circumstances) | {"kind": figures.kind, "figures": asdict(figures)}
        yield json_line(record)


class RecordFile:
    """A file that lines are appended to. Raises OutputError if it cannot be written or created."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with reported_as(OutputError, f"write {path}"):
            os.close(open_to_append(path))

    def append(self, records: Iterable[str]) -> None:
        with reported_as(OutputError, f"write {self._path}"):
            for record in records:
                append_line(self._path, record)
