"""One line for each figure, with the machine and the circumstances of its measurement, for
programs that track figures over time. manual/benchmarks.md documents the fields."""

import os
import platform as system_platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from mlxchat import platform
from mlxchat.about import __version__
from mlxchat.bench.report import Figures
from mlxchat.errors import OutputError
from mlxchat.files import append_line, json_line, open_to_append, reported_as


@dataclass(frozen=True, slots=True)
class Machine:
    """`load` is the average number of programs that wanted a core in the last minute. Above about
    one core, only ratios are meaningful."""

    system: str
    processor: str
    cores: int
    memory_bytes: int
    load: float
    device: str
    backend: str
    blas: str
    python: str
    mlx: str
    mlx_lm: str
    mlxchat: str

    @property
    def is_busy(self) -> bool:
        return self.load > self.cores / 2

    def in_words(self) -> str:
        """One line for people."""
        return (
            f"{self.processor}, {self.cores} cores, {self.backend}, BLAS {self.blas}; "
            f"mlxchat {self.mlxchat}, mlx {self.mlx}, mlx-lm {self.mlx_lm}, Python {self.python}"
        )


def this_machine() -> Machine:
    """The current state; the device must have been chosen."""
    uname = system_platform.uname()
    return Machine(
        system=f"{uname.system} {uname.release} {uname.machine}",
        processor=platform.device_name(),
        cores=os.cpu_count() or 1,
        memory_bytes=platform.total_memory_bytes(),
        load=round(os.getloadavg()[0], 2),
        device="gpu" if platform.on_gpu() else "cpu",
        backend=platform.backend_name(),
        blas=platform.blas_name(),
        python=system_platform.python_version(),
        mlx=version("mlx"),
        mlx_lm=version("mlx-lm"),
        mlxchat=__version__,
    )


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
    machine: Machine

    def in_words(self) -> str:
        """One line for people."""
        incomplete = "" if self.complete else ", not complete"
        machine = self.machine.in_words()
        return f"{self.command}{incomplete}: {self.model}, {self.dtype}, {machine}"


def lines(found: Sequence[Figures], circumstances: Circumstances) -> Iterator[str]:
    """JSON objects, one per figure, without line ends."""
    for figures in found:
        record = asdict(circumstances) | {"kind": figures.kind}
        yield json_line(record | {"figures": asdict(figures)["values"]})


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
