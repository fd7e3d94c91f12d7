"""Runs `mlxchat bench`: each benchmark in turn, reported even if interrupted."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from mlxchat.app.opening import find_model, load_model, start
from mlxchat.app.ranks import check_ranks
from mlxchat.bench import Benchmark
from mlxchat.bench.compare import (
    Comparison,
    Record,
    Table,
    circumstances,
    in_words,
    lines,
    table,
    this_machine,
)
from mlxchat.bench.subject import Subject
from mlxchat.errors import ExitStatus, MlxchatError, OutputError, UsageError, device_failures
from mlxchat.files import reported_as
from mlxchat.models.model import Alone
from mlxchat.request import Setup
from mlxchat.terminal import Terminated, visible
from mlxchat.terminal.output import Messages, Stdout, show_error, wrap
from mlxchat.terminal.progress import observer_of, progress
from mlxchat.terminal.table import format_table
from mlxchat.terminal.worker import Worker, in_worker

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class BenchRequest:
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


def _run_benches(asked: BenchRequest, ranks: Alone, worker: Worker) -> int:
    request = ranks.same(lambda: asked)
    setup = request.setup
    check_ranks(ranks, pipeline=setup.pipeline, adapter=setup.adapter is not None)
    if ranks.size > 1 and (request.against or not all(e.on_ranks for e in request.entries)):
        raise UsageError(
            "under mlx.launch, only the decode benchmark works, without a comparison: the others "
            "measure one machine"
        )
    messages = Messages(request.quiet)
    # Check before measuring that the figures can be saved.
    Stdout()
    if request.json_file not in (None, STDOUT) and ranks.leads:
        with reported_as(OutputError, f"write {request.json_file}"):
            Path(request.json_file).open("a").close()
    start(setup)
    found = find_model(setup, observer_of(messages), ranks)
    if len(request.entries) > 1 and not request.quick:
        messages.note("measuring everything may take hours; --quick, about a minute each")
    machine = this_machine()

    def tick(done: int, total: int, what: str) -> None:
        if ranks.lead(stop.requested()):
            raise Terminated(stop.status or ExitStatus.TERMINATED)
        line.show(f"{done}/{total} {what}", done, total)

    status = ExitStatus.OK
    with worker.stoppable() as stop:
        subject = Subject(
            found.directory,
            found.name,
            partial(load_model, setup, found, messages.warn, ranks=ranks),
            dtype=setup.dtype,
            device=setup.device,
            quick=request.quick,
            against=request.against,
            adapter=setup.adapter,
            notify=cache(messages.warn),
        )
        for entry in request.entries:
            # Drawn between runs only, so that drawing does not affect the measurements.
            shown = progress(request.quiet, is_animated=False)
            failing = reported_as(OutputError, f"measure {entry.name}")
            comparisons: list[Comparison[Any, Any]] = []
            is_complete = False
            try:
                with shown as line, device_failures(), failing:
                    line.show("getting ready", 0, 1)
                    comparisons += import_module(f"mlxchat.bench.{entry.name}").comparisons(subject)
                    for each in comparisons:
                        each.run(tick)
                is_complete = True
            except OutputError:
                raise
            except MlxchatError as error:
                if len(request.entries) == 1:
                    raise
                show_error(f"bench {entry.name}: {error}")
                status = ExitStatus.FAILURE
            finally:
                if not is_complete:
                    messages.note(f"bench {entry.name} is incomplete")
                if ranks.leads and (begun := [each for each in comparisons if each.runs]):
                    common = circumstances(entry.name, subject, machine, complete=is_complete)
                    _write(begun, common, request.json_file)
    return status


def _write(found: Sequence[Comparison[Any, Any]], common: Record, json_file: str | None) -> None:
    """Write the file and stdout: if one fails, the other is still written."""
    records, stdout = lines(found, common), Stdout()
    if json_file == STDOUT:
        text = "".join(f"{record}\n" for record in records)
    else:
        drawn = [table(each.title, each.figures()) for each in found]
        parts = [format_bench_table(each, stdout.is_terminal) for each in drawn]
        text = _remark(in_words(common), stdout.is_terminal) + "".join(parts)
    try:
        stdout.write(text)
    finally:
        if json_file not in (None, STDOUT):
            with reported_as(OutputError, f"write {json_file}"), Path(json_file).open("a") as file:
                file.writelines(f"{record}\n" for record in records)


def format_bench_table(table: Table, for_terminal: bool) -> str:
    """A title and the table, with numbers aligned right."""
    columns = zip(table.headers, zip(*table.rows, strict=True), strict=True)
    numbers = [n for n, cells in columns if all(c.lstrip("-")[:1].isdigit() for c in cells if c)]
    rows = table.rows if for_terminal else (table.headers, *table.rows)
    drawn = format_table(table.headers, rows, right_aligned=numbers, for_terminal=for_terminal)
    return f"{_remark(table.title, for_terminal)}{drawn}\n"


def _remark(text: str, for_terminal: bool) -> str:
    if not for_terminal:
        return f"# {' '.join(visible(text).split())}\n"
    return f"{wrap(visible(text), shutil.get_terminal_size().columns)}\n\n"
