"""Writes the results of `mlxchat bench` to stdout and a file."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mlxchat.bench.measure import Measured
from mlxchat.bench.record import RecordFile, lines
from mlxchat.bench.report import tables
from mlxchat.terminal.bench_table import comment, format_bench_table, paragraph
from mlxchat.terminal.text_output import Stdout

STDOUT = "-"


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
        stdout.write(f"{paragraph(head)}\n" if stdout.is_terminal else comment(head))
        for table in tables(measured.found, measured.bench.TITLES):
            stdout.write(format_bench_table(table, for_terminal=stdout.is_terminal))
