"""One line for each figure, with the machine and the circumstances of its measurement, for
programs that track figures over time. manual/benchmarks.md documents the fields."""

import os
import platform as system_platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Self

from mlxchat import platform
from mlxchat.bench.report import Figures
from mlxchat.bench.subject import Subject
from mlxchat.files import json_line
from mlxchat.models.skeleton import named_parameters
from mlxchat.paths import __version__


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

    @classmethod
    def of(cls, name: str, subject: Subject, machine: Machine, *, complete: bool) -> Self:
        model = subject.model if subject.has_model else None
        weights = named_parameters(model.network) if model is not None else None
        return cls(
            bench=name,
            time=datetime.now().astimezone().isoformat(timespec="seconds"),
            command=shlex.join(["mlxchat", *sys.argv[1:]]),
            complete=complete,
            quick=subject.quick,
            model=subject.name,
            dtype=subject.dtype if model is None else str(model.dtype).rpartition(".")[2],
            weights_bytes=None if weights is None else sum(array.nbytes for _, array in weights),
            machine=machine,
        )

    def in_words(self) -> str:
        """One line for people."""
        incomplete = "" if self.complete else ", not complete"
        machine = self.machine.in_words()
        return f"{self.command}{incomplete}: {self.model}, {self.dtype}, {machine}"


def lines(found: Sequence[Figures], circumstances: Circumstances) -> list[str]:
    """JSON objects, one per figure, without line ends."""
    record = asdict(circumstances)
    return [
        json_line(record | {"kind": each.kind, "figures": asdict(each)["values"]}) for each in found
    ]
