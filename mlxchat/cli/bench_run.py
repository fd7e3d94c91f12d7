"""What `mlxchat bench` does: each sub-bench in turn, and what it found into all the places where it
is wanted, also where it was interrupted."""

import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlxchat.app.ranks import Ranks, check_ranks, lead_or_follow
from mlxchat.app.setup import Setup, load_model, start
from mlxchat.bench import plot
from mlxchat.bench.catalog import Entry, load
from mlxchat.bench.machine import this_machine
from mlxchat.bench.measure import Measured, measure
from mlxchat.bench.record import Circumstances, RecordFile, lines
from mlxchat.bench.subject import Subject
from mlxchat.cli.setup import find_model
from mlxchat.errors import ExitStatus, MlxchatError, OutputError, UsageError
from mlxchat.terminal.bench_progress import BenchProgress
from mlxchat.terminal.bench_table import comment, format_bench_table, paragraph
from mlxchat.terminal.chart import draw_chart
from mlxchat.terminal.messages import Messages, show_error
from mlxchat.terminal.signals import ignore_signals
from mlxchat.terminal.text_output import Stdout
from mlxchat.wording import Message

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
    places = _Places(request, _check_outputs(request, messages), messages)
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
            try:
                measure(
                    load(entry.name),
                    entry,
                    subject,
                    machine,
                    command=shlex.join(["mlxchat", *sys.argv[1:]]),
                    shown=progress.of(entry.name),
                    hand_out=places.hand_out,
                    note=messages.note,
                )
            except OutputError:
                raise
            except MlxchatError as error:
                if len(request.entries) == 1:
                    raise
                show_error(Message(f"bench {entry.name}: ", error))
                status = ExitStatus.FAILURE
    return status


def _check_outputs(request: BenchRequest, messages: Messages) -> RecordFile | None:
    """Before anything is measured, that what is measured can be kept. Raises OutputError."""
    Stdout()
    file = None
    if request.json_file not in (None, STDOUT):
        file = RecordFile(Path(request.json_file))
    if request.plot is not None:
        plot.prepare(Path(request.plot))
        if not plot.available():
            messages.warn(
                f"no charts will be drawn into {request.plot}: matplotlib is not installed; "
                f"{plot.INSTALL} brings it"
            )
    return file


@dataclass(frozen=True, slots=True)
class _Places:
    """Where figures go."""

    request: BenchRequest
    file: RecordFile | None
    messages: Messages

    def hand_out(self, measured: Measured) -> None:
        """Into the file, to stdout and as charts: if one of them fails, the rest is done."""
        records = list(lines(measured.found, measured.circumstances))
        with ExitStack() as rest:
            rest.callback(self._draw, measured)
            rest.callback(self._show, measured, records)
            if self.file is not None:
                self.file.append(records)

    def _show(self, measured: Measured, records: Sequence[str]) -> None:
        stdout = Stdout()
        if self.request.json_file == STDOUT:
            stdout.write("".join(f"{record}\n" for record in records))
            return
        head = _in_words(measured.circumstances)
        stdout.write(f"{paragraph(head)}\n" if stdout.is_terminal else comment(head))
        for table in measured.bench.tables(measured.found):
            stdout.write(format_bench_table(table, for_terminal=stdout.is_terminal))
        if stdout.is_terminal:
            columns = shutil.get_terminal_size().columns
            for chart in measured.bench.charts(measured.found):
                stdout.write(draw_chart(chart, columns))

    def _draw(self, measured: Measured) -> None:
        if self.request.plot is None or not plot.available():
            return
        charts = measured.bench.charts(measured.found)
        caption = _in_words(measured.circumstances)
        for path in plot.draw(charts, Path(self.request.plot), caption):
            self.messages.note(f"drawn: {path}")


def _in_words(circumstances: Circumstances) -> str:
    incomplete = "" if circumstances.complete else ", not complete"
    return (
        f"{circumstances.command}{incomplete}: {circumstances.model}, {circumstances.dtype}, "
        f"{circumstances.machine.in_words()}"
    )
