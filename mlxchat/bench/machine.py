"""The machine and versions a figure was measured with, recorded with each figure."""

import os
import platform as system_platform
from dataclasses import dataclass
from importlib.metadata import version

from mlxchat import platform
from mlxchat.about import __version__


@dataclass(frozen=True, slots=True)
class Machine:
    """`load` is the average number of programs that wanted a core in the last minute, None if the
    system does not provide it. Above about one core, only ratios are meaningful."""

    system: str
    processor: str
    cores: int
    memory_bytes: int
    load: float | None
    device: str
    backend: str
    blas: str
    python: str
    mlx: str
    mlx_lm: str
    mlxchat: str

    @property
    def is_busy(self) -> bool:
        return self.load is not None and self.load > self.cores / 2

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
        load=_load(),
        device="gpu" if platform.on_gpu() else "cpu",
        backend=platform.backend_name(),
        blas=platform.blas_name(),
        python=system_platform.python_version(),
        mlx=version("mlx"),
        mlx_lm=version("mlx-lm"),
        mlxchat=__version__,
    )


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
