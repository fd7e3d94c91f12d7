"""Runs `mlxchat bench`: each benchmark in turn, reported even if interrupted."""

import shlex
import shutil
import sys
import tempfile
import textwrap
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from rich.progress import TaskID

from mlxchat.app.opening import find_model, load_model, start
from mlxchat.app.ranks import Ranks, check_ranks, lead_or_follow
from mlxchat.bench.benchmarks import Benchmark, load
from mlxchat.bench.measure import Measured, measure
from mlxchat.bench.record import RecordFile, lines, this_machine
from mlxchat.bench.report import Table, tables
from mlxchat.bench.subject import Subject
from mlxchat.bench.workload_texts import WorkloadName
from mlxchat.errors import ExitStatus, MlxchatError, OutputError, UsageError
from mlxchat.request import Setup
from mlxchat.terminal import visible
from mlxchat.terminal.messages import Messages, show_error
from mlxchat.terminal.moving import moving_line
from mlxchat.terminal.observing import observer_of
from mlxchat.terminal.progress import is_drawn
from mlxchat.terminal.signals import ignore_signals
from mlxchat.terminal.table import format_table
from mlxchat.terminal.text_output import Stdout

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
    workloads: tuple[WorkloadName, ...] = ()


def run_benches(request: BenchRequest) -> int:
    """Measure, and return the exit status. If one of several fails, its error is shown and the
    others run. Raises MlxchatError for everything a user can fix."""
    led = lead_or_follow(lambda ranks: _run_benches(request, ranks), ignore_signals)
    return led or ExitStatus.OK


def _run_benches(request: BenchRequest, ranks: Ranks | None) -> int:
    setup = request.setup
    check_ranks(ranks, pipeline=setup.pipeline, adapter=setup.adapter is not None)
    compared = request.against or request.workloads
    if ranks is not None and (compared or not all(e.on_ranks for e in request.entries)):
        raise UsageError(
            "under mlx.launch, only the decode benchmark works, without a comparison: the others "
            "measure one machine"
        )
    messages = Messages(request.quiet)
    report = BenchReport.prepare(request.json_file)
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
        text = f"{done}/{total} {what}"
        line.update(TaskID(0), completed=done, total=total, description=text, refresh=True)

    status = ExitStatus.OK
    with tempfile.TemporaryDirectory(prefix="mlxchat-bench-") as scratch:
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
            workloads=request.workloads,
            adapter=setup.adapter,
            notify=messages.warn,
        )
        for entry in request.entries:
            try:
                measure(
                    load(entry.name),
                    entry,
                    subject,
                    machine,
                    command=shlex.join(["mlxchat", *sys.argv[1:]]),
                    shown=line if is_drawn(request.quiet) else nullcontext(),
                    hand_out=report.hand_out,
                    note=messages.note,
                )
            except OutputError:
                raise
            except MlxchatError as error:
                if len(request.entries) == 1:
                    raise
                show_error(f"bench {entry.name}: {error}")
                status = ExitStatus.FAILURE
    return status


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Tables or JSON Lines on stdout, JSON Lines in a file."""

    json_to_stdout: bool
    file: RecordFile | None

    @classmethod
    def prepare(cls, json_file: str | None) -> Self:
        """Check before measuring that the results can be saved. Raises OutputError."""
        Stdout()
        on_stdout = json_file == STDOUT
        file = None if json_file is None or on_stdout else RecordFile(Path(json_file))
        return cls(on_stdout, file)

    def hand_out(self, measured: Measured) -> None:
        """Write the file and stdout: if one fails, the other is still written."""
        with ExitStack() as rest:
            rest.callback(self._show, measured)
            if self.file is not None:
                self.file.append(lines(measured.found, measured.circumstances))

    def _show(self, measured: Measured) -> None:
        stdout = Stdout()
        if self.json_to_stdout:
            records = lines(measured.found, measured.circumstances)
            stdout.write("".join(f"{record}\n" for record in records))
            return
        head = measured.circumstances.in_words()
        stdout.write(_remark(head, stdout.is_terminal))
        for table in tables(measured.found, measured.bench.TITLES):
            stdout.write(format_bench_table(table, for_terminal=stdout.is_terminal))


def format_bench_table(table: Table, *, for_terminal: bool) -> str:
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
