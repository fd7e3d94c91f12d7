"""Runs one benchmark from start to end, and keeps its figures even if it is interrupted."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime

from mlxchat.bench.catalog import Bench, Entry
from mlxchat.bench.record import Circumstances, Machine
from mlxchat.bench.report import Figures
from mlxchat.bench.subject import Subject
from mlxchat.errors import ModelError, OutputError
from mlxchat.failures import first_line
from mlxchat.models.skeleton import named_parameters


@dataclass(frozen=True, slots=True)
class Measured:
    """A benchmark's figures, at least one."""

    bench: Bench
    found: Sequence[Figures]
    circumstances: Circumstances


def measure(
    bench: Bench,
    entry: Entry,
    subject: Subject,
    machine: Machine,
    *,
    command: str,
    shown: AbstractContextManager[None],
    hand_out: Callable[[Measured], None],
    note: Callable[[str], None],
) -> None:
    """Measure within `shown`, then hand out the figures, however it ended.

    Raises ModelError and OutputError if MLX or the system reports that memory or a disk is full.
    """
    found: Sequence[Figures] = ()
    complete = False
    try:
        with shown, _in_one_line():
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
    entry: Entry, subject: Subject, machine: Machine, command: str, *, complete: bool
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


@contextmanager
def _in_one_line() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if type(error) not in (RuntimeError, MemoryError):
            raise
        raise ModelError(f"MLX failed: {first_line(error)}") from error
    except OSError as error:
        raise OutputError(f"{error.filename or 'a file'}: {error.strerror or error}") from error
