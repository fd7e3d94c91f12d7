"""Writes the results of `mlxchat bench`: tables on a terminal; in a pipe, tab-separated lines after
a header line, an empty line after each table, remarks after a `#`; or JSON Lines, also in a file.
"""

import shutil
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mlxchat.bench.measure import Measured
from mlxchat.bench.record import RecordFile, lines
from mlxchat.bench.report import Table, tables
from mlxchat.terminal import visible
from mlxchat.terminal.table import format_table
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
