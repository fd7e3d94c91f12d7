"""What `mlxchat bench` does: each sub-bench in turn, and what it found into all the places where it
is wanted, also where it was interrupted."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from mlxchat.app.ranks import check_ranks, lead_or_follow
from mlxchat.app.setup import Setup, load_model, start
from mlxchat.bench import plot
from mlxchat.bench.catalog import Bench, Entry, load
from mlxchat.bench.machine import Machine, this_machine
from mlxchat.bench.record import Circumstances, lines
from mlxchat.bench.subject import Subject
from mlxchat.cli.setup import find_model
from mlxchat.distributed.ranks import Ranks
from mlxchat.errors import ExitStatus, MlxchatError, ModelError, OutputError, UsageError
from mlxchat.files import append_line, open_to_append
from mlxchat.models.skeleton import named_parameters
from mlxchat.terminal.bench_progress import BenchProgress
from mlxchat.terminal.bench_table import comment, format_bench_table, paragraph
from mlxchat.terminal.chart import draw_chart
from mlxchat.terminal.messages import Messages, show_error
from mlxchat.terminal.signals import ignore_signals
from mlxchat.terminal.text_output import Stdout

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The options as they were given."""

    entries: tuple[Entry, ...]
    model: str | None
    offline: bool
    device: str
    dtype: str
    pipeline: bool
    against: bool
    text: str | None
    quick: bool
    json_file: str | None
    plot: str | None
    quiet: bool

    def setup(self) -> Setup:
        return Setup(
            model=self.model,
            offline=self.offline,
            device=self.device,
            dtype=self.dtype,
            window=None,
            seed=0,
            pipeline=self.pipeline,
        )


def run_benches(request: BenchRequest) -> int:
    """Measure, and return the exit status: one of several that cannot be measured is told, and
    does not keep the others from it. Raises MlxchatError for all that a user can mend."""
    led = lead_or_follow(lambda ranks: _run_benches(request, ranks), ignore_signals)
    return led or ExitStatus.OK


def _run_benches(request: BenchRequest, ranks: Ranks | None) -> int:
    check_ranks(ranks, pipeline=request.pipeline)
    if ranks is not None and (request.against or not all(e.on_ranks for e in request.entries)):
        raise UsageError(
            "under mlx.launch only mlxchat bench decode can be run, without --against: the others "
            "measure one machine"
        )
    messages = Messages(request.quiet)
    _check_outputs(request, messages)
    setup = request.setup()
    start(setup, messages.warn)
    found = find_model(setup, messages)
    machine = this_machine()
    if machine.is_busy:
        messages.note(
            f"this machine is busy (load {machine.load} on {machine.cores} cores): of what is "
            "measured now, only ratios mean much"
        )
    progress = BenchProgress(request.quiet)
    status = ExitStatus.OK
    with tempfile.TemporaryDirectory(prefix="mlxchat-bench-") as scratch:
        subject = Subject(
            found.directory,
            found.name,
            partial(load_model, setup, found, messages.warn, ranks=ranks),
            scratch=Path(scratch),
            tick=progress.tick,
            dtype=request.dtype,
            device=request.device,
            quick=request.quick,
            against=request.against,
            text=request.text,
            notify=messages.warn,
        )
        for entry in request.entries:
            run = _Run(request, entry, subject, machine, messages)
            try:
                run.measure(progress)
            except OutputError:
                raise
            except MlxchatError as error:
                if len(request.entries) == 1:
                    raise
                show_error(f"bench {entry.name}: {error}")
                status = ExitStatus.FAILURE
    return status


def _check_outputs(request: BenchRequest, messages: Messages) -> None:
    """Before anything is measured, that what is measured can be kept. Raises OutputError."""
    Stdout()
    if request.json_file not in (None, STDOUT):
        path = Path(request.json_file)
        try:
            os.close(open_to_append(path))
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    if request.plot is None:
        return
    try:
        Path(request.plot).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {request.plot}: {error.strerror or error}") from error
    if not plot.available():
        messages.warn(
            f"no charts will be drawn into {request.plot}: matplotlib is not installed; "
            f"{plot.INSTALL} brings it"
        )


@dataclass(frozen=True, slots=True)
class _Run:
    """One sub-bench."""

    request: BenchRequest
    entry: Entry
    subject: Subject
    machine: Machine
    messages: Messages

    def measure(self, progress: BenchProgress) -> None:
        bench = load(self.entry.name)
        found: Sequence[Any] = ()
        complete = False
        try:
            with progress.of(self.entry.name), _told_in_one_line():
                for so_far in bench.measure(self.subject):
                    found = so_far
            complete = True
        finally:
            if not complete:
                self.messages.note(f"bench {self.entry.name} is not complete")
            if found:
                self._hand_out(bench, found, complete)

    def _hand_out(self, bench: Bench, found: Sequence[Any], complete: bool) -> None:
        """Into the file, to stdout and as charts: where one of them fails, the rest is done."""
        circumstances = self._circumstances(complete)
        records = list(lines(found, circumstances))
        with ExitStack() as rest:
            rest.callback(self._draw, bench, found, circumstances)
            rest.callback(self._show, bench, found, records, circumstances)
            self._keep(records)

    def _circumstances(self, complete: bool) -> Circumstances:
        model = self.subject.model if self.subject.has_model else None
        weights = named_parameters(model.network) if model is not None else None
        return Circumstances(
            bench=self.entry.name,
            time=datetime.now().astimezone().isoformat(timespec="seconds"),
            command=shlex.join(["mlxchat", *sys.argv[1:]]),
            complete=complete,
            quick=self.request.quick,
            model=self.subject.name,
            dtype=self.request.dtype if model is None else str(model.dtype).rpartition(".")[2],
            weights_bytes=None if weights is None else sum(array.nbytes for _, array in weights),
            text=self.subject.text_source if self.entry.reads_text else None,
            machine=self.machine,
        )

    def _keep(self, records: Sequence[str]) -> None:
        path = self.request.json_file
        if path is None or path == STDOUT:
            return
        try:
            for record in records:
                append_line(Path(path), record)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error

    def _show(
        self,
        bench: Bench,
        found: Sequence[Any],
        records: Sequence[str],
        circumstances: Circumstances,
    ) -> None:
        stdout = Stdout()
        if self.request.json_file == STDOUT:
            stdout.write("".join(f"{record}\n" for record in records))
            return
        head = _in_words(circumstances)
        stdout.write(f"{paragraph(head)}\n" if stdout.is_terminal else comment(head))
        for table in bench.tables(found):
            stdout.write(format_bench_table(table, for_terminal=stdout.is_terminal))
        if stdout.is_terminal:
            columns = shutil.get_terminal_size().columns
            for chart in bench.charts(found):
                stdout.write(draw_chart(chart, columns))

    def _draw(self, bench: Bench, found: Sequence[Any], circumstances: Circumstances) -> None:
        if self.request.plot is None or not plot.available():
            return
        directory = Path(self.request.plot)
        for path in plot.draw(bench.charts(found), directory, _in_words(circumstances)):
            self.messages.note(f"drawn: {path}")


def _in_words(circumstances: Circumstances) -> str:
    incomplete = "" if circumstances.complete else ", not complete"
    return (
        f"{circumstances.command}{incomplete}: {circumstances.model}, {circumstances.dtype}, "
        f"{circumstances.machine.in_words()}"
    )


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """What MLX and the system say of memory and disks that are full, as an error of ours."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if type(error) not in (RuntimeError, MemoryError):
            raise
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"MLX could not go on: {first_line}") from error
    except OSError as error:
        raise OutputError(f"{error.filename or 'a file'}: {error.strerror or error}") from error
