"""Output of commands that list things: a table or findings for people, lines for programs.

Rich is imported only for a terminal.
"""

import io
import json
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mlxchat.terminal import visible
from mlxchat.terminal.output import Stdout

if TYPE_CHECKING:
    from rich.table import Table

GAP = 2
# A column that is cut to fit is at least this wide.
MIN_WIDTH = 8
# The widths of a finding's first two columns.
VERDICT, TOPIC = 8, 17


def write(text: str) -> None:
    """To stdout. Raises OutputError."""
    Stdout().write(text)


def write_json_lines(values: Iterable[dict[str, Any]]) -> None:
    write("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))


def write_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right_aligned: Collection[str] = (),
    cut: Sequence[str] | None = None,
    *,
    paged: bool = False,
) -> None:
    """A table on a terminal, tab-separated lines in a pipe; nothing if there are no rows. With
    `paged`, a table longer than the terminal is shown in a pager. See `format_table` for `cut`."""
    if not rows:
        return
    stdout = Stdout()
    on_terminal = stdout.is_terminal
    table = format_table(
        headers, rows, right_aligned=right_aligned, cut=cut, for_terminal=on_terminal
    )
    if paged and on_terminal and table.count("\n") >= shutil.get_terminal_size().lines:
        from mlxchat.terminal.manual_page import page

        page(table)
    else:
        stdout.write(table)


def minute(seconds: float) -> str:
    """A time in seconds since 1970, to the minute."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def format_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right_aligned: Collection[str] = (),
    cut: Sequence[str] | None = None,
    for_terminal: bool,
) -> str:
    """Lay out `rows` below `headers`; in a pipe, as lines without headers.

    On a narrow terminal cells are wrapped. With `cut`, each row stays one line instead: the columns
    it names are shortened, and the last ones are left out if they do not fit, the first that it
    names after all others. The first column is always whole, so that it can be copied.

    Cells may come from files: control characters in them are made visible.
    """
    cells = [[" ".join(visible(text).split()) for text in row] for row in rows]
    if not for_terminal:
        return "".join("\t".join(row) + "\n" for row in cells)
    from rich.box import SIMPLE
    from rich.table import Table

    columns = {header: [row[n] for row in cells] for n, header in enumerate(headers)}
    shown = headers if cut is None else _fitting(columns, cut)
    table = Table(box=SIMPLE, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for header in shown:
        table.add_column(
            header,
            justify="right" if header in right_aligned else "left",
            # Rich narrows the others first.
            no_wrap=cut is not None and header not in cut,
            overflow="fold" if cut is None else "ellipsis",
        )
    for row in zip(*(columns[header] for header in shown), strict=True):
        table.add_row(*(_cell(text, no_wrap=cut is not None) for text in row))
    return _drawn(table)


def _fitting(columns: Mapping[str, Sequence[str]], cut: Sequence[str]) -> list[str]:
    """The headers of the columns that fit."""
    from rich.cells import cell_len
    from rich.console import Console

    width = Console().width
    least = {
        header: min(max(map(cell_len, (header, *cells))), MIN_WIDTH if header in cut else width)
        for header, cells in columns.items()
    }
    first, *others = columns
    others.sort(key=lambda header: header in cut[:1], reverse=True)
    while others and sum(least[each] + GAP for each in (first, *others)) - GAP > width:
        others.pop()
    return [header for header in columns if header in (first, *others)]


def format_finding(verdict: str, topic: str, text: str, advice: str | None) -> str:
    """The verdict, the topic, the text, and below it the advice after an arrow."""
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    table.add_column(width=VERDICT)
    table.add_column(width=TOPIC)
    table.add_column(overflow="fold")
    table.add_row(verdict, topic, _cell(text))
    if advice is not None:
        table.add_row("", "", _cell(f"→ {advice}"))
    return _drawn(table)


def _cell(text: str, *, no_wrap: bool = False) -> Any:
    from rich.text import Text

    return Text(" ".join(visible(text).split()), no_wrap=no_wrap)


def _drawn(table: "Table") -> str:
    from rich.console import Console

    # The width of the real terminal, but no styles.
    console = Console(file=io.StringIO(), width=Console().width)
    with console.capture() as captured:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
