"""Tables and findings on a terminal, tab-separated columns in a pipe."""

import io
from collections.abc import Collection, Sequence
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
    it names are shortened, and the last ones are left out if they do not fit. The first is always
    whole, so that it can be copied.

    Cells may come from files: control characters in them are made visible.
    """
    rows = [[" ".join(visible(text).split()) for text in row] for row in rows]
    if not for_terminal:
        return "".join("\t".join(row) + "\n" for row in rows)
    from rich.box import SIMPLE
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    free = Console().width
    for header, *cells in zip(headers, *rows, strict=True):
        width = max(map(cell_len, (header, *cells)))
        if cut is None:
            width = 0
        elif header in cut:
            width = min(width, MIN_WIDTH)
        if free < width and table.columns:
            break
        free -= width + GAP
        table.add_column(
            header,
            justify="right" if header in right_aligned else "left",
            # Rich narrows the others first.
            no_wrap=cut is not None and header not in cut,
            overflow="fold" if cut is None else "ellipsis",
        )
    for row in rows:
        cells = [_text(cell) for cell in row[: len(table.columns)]]
        for cell in cells:
            cell.no_wrap = cut is not None
        table.add_row(*cells)
    return _drawn(table)


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
