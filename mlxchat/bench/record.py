"""One line for each figure, with the machine and the circumstances of its measurement, for
programs that track figures over time. manual/benchmarks.md documents the fields."""

import json
import math
import os
import platform as system_platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any

from mlxchat import platform
from mlxchat.bench.compare import Comparison, Figures
from mlxchat.bench.subject import Subject
from mlxchat.models.skeleton import named_parameters
from mlxchat.paths import __version__

Record = dict[str, Any]


def this_machine() -> Record:
    """Its current state; the device must have been chosen. `load` is the average number of programs
    that wanted a core in the last minute."""
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
    if subject.has_model:
        dtype = str(subject.model.dtype).rpartition(".")[2]
        arrays = (array for _, array in named_parameters(subject.model.network))
        weights_bytes = sum(array.nbytes for array in arrays)
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
        json.dumps(_finite(common | {"kind": each.kind, "figures": _plain(figures)}))
        for each in found
        for figures in each.figures()
    ]


def _finite(value: Any) -> Any:
    """Without infinity and NaN, which JSON does not have: null."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(figures: Figures) -> Record:
    return {
        name: asdict(value) if is_dataclass(value) else value for name, value in figures.items()
    }
