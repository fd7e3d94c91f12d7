"""Writes the results of `mlxchat bench` to stdout, a file and charts."""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mlxchat.bench import plot
from mlxchat.bench.measure import Measured
from mlxchat.bench.record import Circumstances, RecordFile, lines
from mlxchat.terminal.bench_table import comment, format_bench_table, paragraph
from mlxchat.terminal.chart import draw_chart
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.text_output import Stdout

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Tables or JSON Lines on stdout, JSON Lines in a file, charts in a directory."""

    json_to_stdout: bool
    file: RecordFile | None
    charts: Path | None
    messages: Messages

    @classmethod
    def prepare(cls, json_file: str | None, charts: str | None, messages: Messages) -> Self:
        """Check before measuring that the results can be saved. Raises OutputError."""
        Stdout()
        on_stdout = json_file == STDOUT
        file = None if json_file is None or on_stdout else RecordFile(Path(json_file))
        if charts is not None:
            plot.prepare(Path(charts))
            if not plot.available():
                messages.warn(
                    f"cannot draw charts in {charts}: matplotlib is not installed; "
                    f"{plot.INSTALL} installs it"
                )
                charts = None
        return cls(on_stdout, file, None if charts is None else Path(charts), messages)

    def hand_out(self, measured: Measured) -> None:
        """Write the file, stdout and the charts: if one fails, the others are still written."""
        records = list(lines(measured.found, measured.circumstances))
        with ExitStack() as rest:
            rest.callback(self._draw, measured)
            rest.callback(self._show, measured, records)
            if self.file is not None:
                self.file.append(records)

    def _show(self, measured: Measured, records: Sequence[str]) -> None:
        stdout = Stdout()
        if self.json_to_stdout:
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
        if self.charts is None:
            return
        charts = measured.bench.charts(measured.found)
        for path in plot.draw(charts, self.charts, _in_words(measured.circumstances)):
            self.messages.note(f"drawn: {path}")


def _in_words(circumstances: Circumstances) -> str:
    incomplete = "" if circumstances.complete else ", not complete"
    return (
        f"{circumstances.command}{incomplete}: {circumstances.model}, {circumstances.dtype}, "
        f"{circumstances.machine.in_words()}"
    )
