"""Runs `mlxchat bench`: each benchmark in turn, reported even if interrupted."""

import os
import shutil
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.progress import Progress, TaskID

from mlxchat.app.opening import find_model, load_model, start
from mlxchat.app.ranks import Ranks, check_ranks
from mlxchat.bench import Benchmark, load
from mlxchat.bench.record import Circumstances, Machine, lines, this_machine
from mlxchat.bench.report import Figures, Table, tables
from mlxchat.bench.subject import Subject
from mlxchat.errors import ExitStatus, MlxchatError, OutputError, UsageError, device_failures
from mlxchat.files import append_line, open_to_append, reported_as
from mlxchat.request import Setup
from mlxchat.terminal import Terminated, visible
from mlxchat.terminal.moving import moving_line
from mlxchat.terminal.output import Messages, Stdout, show_error
from mlxchat.terminal.progress import is_drawn, observer_of
from mlxchat.terminal.table import format_table
from mlxchat.terminal.worker import Worker, in_worker

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The options of the command."""

    entries: tuple[Benchmark, ...]
    setup: Setup
    against: bool
    quick: bool
    json_file: str | None
    quiet: bool


def run_benches(request: BenchRequest) -> int:
    """Measure, and return the exit status. If one of several fails, its error is shown and the
    others run. Raises MlxchatError for everything a user can fix."""
    return in_worker(lambda worker, ranks: _run_benches(request, ranks, worker))


def _run_benches(request: BenchRequest, ranks: Ranks | None, worker: Worker) -> int:
    setup = request.setup
    check_ranks(ranks, pipeline=setup.pipeline, adapter=setup.adapter is not None)
    if ranks is not None and (request.against or not all(e.on_ranks for e in request.entries)):
        raise UsageError(
            "under mlx.launch, only the decode benchmark works, without a comparison: the others "
            "measure one machine"
        )
    messages = Messages(request.quiet)
    _check_output(request.json_file)
    start(setup, messages.warn)
    found = find_model(setup, observer_of(messages))
    machine = this_machine()
    if machine.is_busy:
        messages.note(
            f"this machine is busy (load {machine.load} on {machine.cores} cores): trust only the "
            "ratios"
        )
    # Drawn between runs only, so that drawing does not affect the measurements.
    line = moving_line("getting ready", 1, is_animated=False)

    def tick(done: int, total: int, what: str) -> None:
        if stop.requested():
            assert stop.status is not None
            raise Terminated(stop.status)
        text = f"{done}/{total} {what}"
        line.update(TaskID(0), completed=done, total=total, description=text, refresh=True)

    status = ExitStatus.OK
    with (
        tempfile.TemporaryDirectory(prefix="mlxchat-bench-") as scratch,
        worker.stoppable() as stop,
    ):
        subject = Subject(
            found.directory,
            found.name,
            partial(load_model, setup, found, messages.warn, ranks=ranks),
            scratch=Path(scratch),
            tick=tick,
            dtype=setup.dtype,
            device=setup.device,
            quick=request.quick,
            against=request.against,
            adapter=setup.adapter,
            notify=messages.warn,
        )
        for entry in request.entries:
            try:
                _measure(entry.name, subject, machine, request, line)
            except OutputError:
                raise
            except MlxchatError as error:
                if len(request.entries) == 1:
                    raise
                show_error(f"bench {entry.name}: {error}")
                status = ExitStatus.FAILURE
    return status


def _measure(
    name: str, subject: Subject, machine: Machine, request: BenchRequest, line: Progress
) -> None:
    """Measure, and write the figures, however it ended.

    Raises DeviceError or OutputError if MLX or the system reports that memory or a disk is full.
    """
    bench = load(name)
    found: Sequence[Figures] = ()
    complete = False
    try:
        shown = line if is_drawn(request.quiet) else nullcontext()
        with shown, device_failures(), reported_as(OutputError, f"measure {name}"):
            for so_far in bench.measure(subject):
                found = so_far
        complete = True
    finally:
        if not complete:
            Messages(request.quiet).note(f"bench {name} is incomplete")
        if found:
            circumstances = Circumstances.of(name, subject, machine, complete=complete)
            _write(found, bench.TITLES, circumstances, request.json_file)


def _check_output(json_file: str | None) -> None:
    """Check before measuring that the figures can be saved. Raises OutputError."""
    Stdout()
    if json_file not in (None, STDOUT):
        with reported_as(OutputError, f"write {json_file}"):
            os.close(open_to_append(Path(json_file)))


def _write(
    found: Sequence[Figures],
    titles: Mapping[str, str],
    circumstances: Circumstances,
    json_file: str | None,
) -> None:
    """Write the file and stdout: if one fails, the other is still written."""
    records, stdout = lines(found, circumstances), Stdout()
    if json_file == STDOUT:
        text = "".join(f"{record}\n" for record in records)
    else:
        parts = [format_bench_table(each, stdout.is_terminal) for each in tables(found, titles)]
        text = _remark(circumstances.in_words(), stdout.is_terminal) + "".join(parts)
    try:
        stdout.write(text)
    finally:
        if json_file not in (None, STDOUT):
            with reported_as(OutputError, f"write {json_file}"):
                for record in records:
                    append_line(Path(json_file), record)


def format_bench_table(table: Table, for_terminal: bool) -> str:
    """A title and the table, with numbers aligned right."""
    columns = zip(table.headers, zip(*table.rows, strict=True), strict=True)
    numbers = [name for name, cells in columns if all(map(_is_number, filter(None, cells)))]
    rows = table.rows if for_terminal else (table.headers, *table.rows)
    drawn = format_table(table.headers, rows, right_aligned=numbers, for_terminal=for_terminal)
    return f"{_remark(table.title, for_terminal)}{drawn}\n"


def _remark(text: str, for_terminal: bool) -> str:
    if not for_terminal:
        return f"# {' '.join(visible(text).split())}\n"
    columns = shutil.get_terminal_size().columns
    return f"{textwrap.fill(visible(text), columns, break_on_hyphens=False)}\n\n"


def _is_number(cell: str) -> bool:
    return cell.lstrip("-")[:1].isdigit()
