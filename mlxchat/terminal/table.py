"""Tables and findings on a terminal, tab-separated columns in a pipe."""

import io
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from mlxchat.terminal import visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

GAP = 2
# A column that is cut to fit is at least this wide.
MIN_WIDTH = 8
# The widths of a finding's first two columns, and the least of its text next to them.
VERDICT, TOPIC, TEXT = 8, 17, 30


def format_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right_aligned: Collection[str] = (),
    cut: Collection[str] | None = None,
    for_terminal: bool,
) -> str:
    """Lay out `rows` below `headers`; in a pipe, as lines without headers.

    On a narrow terminal cells are wrapped. With `cut`, each row stays one line instead: the columns
    it names are shortened, and the last ones are left out if they do not fit, the first that it
    names after all others. The first column is always whole, so that it can be copied.

    Cells may come from files: control characters in them are made visible.
    """
    rows = [[" ".join(visible(text).split()) for text in row] for row in rows]
    if not for_terminal:
        return "".join("\t".join(row) + "\n" for row in rows)
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    columns = {header: [row[n] for row in rows] for n, header in enumerate(headers)}
    shown = headers if cut is None else _fitting(columns, cut, Console().width)
    for header in shown:
        table.add_column(
            header,
            justify="right" if header in right_aligned else "left",
            # Rich narrows the others first.
            no_wrap=cut is not None and header not in cut,
            overflow="fold" if cut is None else "ellipsis",
        )
    for number in range(len(rows)):
        cells = [_text(columns[header][number]) for header in shown]
        for cell in cells:
            cell.no_wrap = cut is not None
        table.add_row(*cells)
    return _drawn(table)


def _fitting(columns: Mapping[str, Sequence[str]], cut: Collection[str], width: int) -> list[str]:
    """The headers of the columns that fit."""
    from rich.cells import cell_len

    least = {
        header: min(max(map(cell_len, (header, *cells))), MIN_WIDTH if header in cut else width)
        for header, cells in columns.items()
    }
    first, *others = columns
    others.sort(key=lambda header: header in tuple(cut)[:1], reverse=True)
    while others and sum(least[each] + GAP for each in (first, *others)) - GAP > width:
        others.pop()
    return [header for header in columns if header in (first, *others)]


def format_finding(verdict: str, topic: str, text: str, advice: str | None) -> str:
    """The verdict, the topic, the text, and below it the advice after an arrow."""
    from rich.console import Console, Group
    from rich.padding import Padding
    from rich.table import Table

    body = Group(_text(text))
    if advice is not None:
        arrow = Table.grid(padding=(0, 1))
        arrow.add_row("→", _text(advice))
        body = Group(_text(text), arrow)
    if Console().width < VERDICT + TOPIC + TEXT:
        return _drawn(Group(_text(f"{verdict} {topic}"), Padding(body, (0, 0, 0, 2))))
    table = Table.grid(padding=(0, 1))
    table.add_column(width=VERDICT)
    table.add_column(width=TOPIC)
    table.add_column(overflow="fold")
    table.add_row(verdict, topic, body)
    return _drawn(table)


def _text(cell: str) -> "Text":
    from rich.text import Text

    return Text(" ".join(visible(cell).split()))


def _drawn(table: "RenderableType") -> str:
    from rich.console import Console

    # The width of the real terminal, but no colours, so that the text can be inspected.
    console = Console(file=io.StringIO(), no_color=True, width=Console().width)
    with console.capture() as captured:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
