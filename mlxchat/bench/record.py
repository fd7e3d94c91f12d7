"""A line for each figure that was measured, with all that it was measured on: for programs that
follow figures through time. manual/benchmarks.md lists its fields."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlxchat.bench.machine import Machine
from mlxchat.errors import OutputError
from mlxchat.files import append_line, open_to_append, reported_as


@dataclass(frozen=True, slots=True)
class Circumstances:
    """`time` is when the sub-bench ended. Where every run loads the model for itself, `dtype` is
    what it was told to, and `weights_bytes` is None. `complete`: nothing interrupted it."""

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
    """JSON objects, one a figure, without line ends."""
    for figures in found:
        record = asdict(circumstances) | {"kind": figures.kind, "figures": asdict(figures)}
        yield json.dumps(_for_json(record), ensure_ascii=False, allow_nan=False)


class RecordFile:
    """Lines appended to a file. Raises OutputError if it cannot be written, already when made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with reported_as(OutputError, f"write {path}"):
            os.close(open_to_append(path))

    def append(self, records: Iterable[str]) -> None:
        with reported_as(OutputError, f"write {self._path}"):
            for record in records:
                append_line(self._path, record)


def _for_json(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    if isinstance(value, dict):
        return {name: _for_json(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
