"""Runs one benchmark from start to end, and keeps its figures even if it is interrupted."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

from mlxchat.bench.benchmarks import Bench, Benchmark
from mlxchat.bench.record import Circumstances, Machine
from mlxchat.bench.report import Figures
from mlxchat.bench.subject import Subject
from mlxchat.errors import OutputError
from mlxchat.failures import device_failures
from mlxchat.files import reported_as
from mlxchat.models.skeleton import named_parameters


@dataclass(frozen=True, slots=True)
class Measured:
    """A benchmark's figures, at least one."""

    bench: Bench
    found: Sequence[Figures]
    circumstances: Circumstances


def measure(
    bench: Bench,
    entry: Benchmark,
    subject: Subject,
    machine: Machine,
    *,
    command: str,
    shown: AbstractContextManager[object],
    hand_out: Callable[[Measured], None],
    note: Callable[[str], None],
) -> None:
    """Measure within `shown`, then hand out the figures, however it ended.

    Raises DeviceError or OutputError if MLX or the system reports that memory or a disk is full.
    """
    found: Sequence[Figures] = ()
    complete = False
    try:
        with shown, device_failures(), reported_as(OutputError, f"measure {entry.name}"):
            for so_far in bench.measure(subject):
                found = so_far
        complete = True
    finally:
        if not complete:
            note(f"bench {entry.name} is incomplete")
        if found:
            circumstances = _circumstances(entry, subject, machine, command, complete=complete)
            hand_out(Measured(bench, found, circumstances))


def _circumstances(
    entry: Benchmark, subject: Subject, machine: Machine, command: str, *, complete: bool
) -> Circumstances:
    model = subject.model if subject.has_model else None
    weights = named_parameters(model.network) if model is not None else None
    return Circumstances(
        bench=entry.name,
        time=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=command,
        complete=complete,
        quick=subject.quick,
        model=subject.name,
        dtype=subject.dtype if model is None else str(model.dtype).rpartition(".")[2],
        weights_bytes=None if weights is None else sum(array.nbytes for _, array in weights),
        machine=machine,
    )
