"""Tables on a terminal, tab-separated columns in a pipe."""

import io
from collections.abc import Collection, Sequence

from mlxchat.terminal import visible


def format_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right_aligned: Collection[str] = (),
    for_terminal: bool,
) -> str:
    """Lay out `rows` below `headers`; in a pipe, as lines without headers.

    Cells may come from files: control characters in them are made visible.
    """
    rows = [[_cell(text) for text in row] for row in rows]
    if not for_terminal:
        return "".join("\t".join(row) + "\n" for row in rows)
    return _drawn(headers, rows, right_aligned)


def _drawn(
    headers: Sequence[str], rows: Sequence[Sequence[str]], right_aligned: Collection[str]
) -> str:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, pad_edge=False, show_edge=False)
    for header in headers:
        table.add_column(
            header, justify="right" if header in right_aligned else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # The width of the real terminal, but no colours, so that the text can be inspected.
    console = Console(file=io.StringIO(), no_color=True, width=Console().width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _cell(text: str) -> str:
    return " ".join(visible(text).split())
