"""Tables of measurements: drawn on a terminal; in a pipe, tab-separated lines after a header line,
an empty line after each table, and remarks after a `#`."""

import shutil
import textwrap
from collections.abc import Sequence

from mlxchat.bench.report import Table
from mlxchat.terminal import visible
from mlxchat.terminal.table import format_table


def format_bench_table(table: Table, *, for_terminal: bool) -> str:
    """Right-aligned numbers without colours."""
    if not for_terminal:
        lines = format_table(table.headers, [table.headers, *table.rows], for_terminal=False)
        return f"{comment(table.title)}{lines}\n"
    drawn = format_table(
        table.headers, table.rows, right_aligned=_numbers(table), for_terminal=True
    )
    return f"{paragraph(table.title)}\n{drawn}\n"


def paragraph(text: str) -> str:
    """As wide as the terminal, wrapped between words."""
    columns = shutil.get_terminal_size().columns
    return "\n".join(textwrap.wrap(visible(text), columns, break_on_hyphens=False)) + "\n"


def comment(text: str) -> str:
    return f"# {' '.join(visible(text).split())}\n"


def _numbers(table: Table) -> Sequence[str]:
    """The headers of columns that contain only numbers."""
    columns = zip(table.headers, zip(*table.rows, strict=True), strict=True)
    return [name for name, cells in columns if all(_is_number(cell) for cell in cells if cell)]


def _is_number(cell: str) -> bool:
    return cell.lstrip("-")[:1].isdigit()
