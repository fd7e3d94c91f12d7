"""Tables on a terminal, tab-separated columns in a pipe."""

import io
from collections.abc import Collection, Sequence

from mlxchat.terminal import visible

GAP = 2
# A column that is cut to fit is at least this wide, or left out.
MIN_WIDTH = 8


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
    it names are shortened, those that do not fit are left out, and the first one is always whole,
    so that it can be copied. The first of the shortened columns goes before those that are not.

    Cells may come from files: control characters in them are made visible.
    """
    rows = [[_cell(text) for text in row] for row in rows]
    if not for_terminal:
        return "".join("\t".join(row) + "\n" for row in rows)
    if cut is None:
        return _drawn(headers, rows, right_aligned)
    return _lines(headers, rows, right_aligned, cut)


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


def _lines(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right_aligned: Collection[str],
    cut: Collection[str],
) -> str:
    from rich.console import Console

    columns = list(zip(headers, *rows, strict=True))
    widths = _fitted(columns, cut, Console().width)
    shown = [(each, width) for each, width in zip(columns, widths, strict=True) if width]
    lines = [
        (" " * GAP).join(_padded(each[n], width, each[0] in right_aligned) for each, width in shown)
        for n in range(len(rows) + 1)
    ]
    rule = "─" * (sum(width + GAP for _, width in shown) - GAP)
    return "".join(f"{line.rstrip()}\n" for line in [lines[0], rule, *lines[1:]])


def _fitted(columns: Sequence[Sequence[str]], cut: Collection[str], width: int) -> list[int]:
    """The width of each column; 0 for one that is left out."""
    from rich.cells import cell_len

    wanted = [max(map(cell_len, column)) for column in columns]
    minima = [
        min(MIN_WIDTH, each) if column[0] in cut else each
        for column, each in zip(columns, wanted, strict=True)
    ]
    main = next((i for i, column in enumerate(columns) if column[0] in cut), 0)
    widths: list[int] = []
    free = width
    for i in range(len(columns)):
        room = free - (minima[main] + GAP if 0 < i < main else 0)
        fitting = wanted[i] if i == 0 or wanted[i] <= room else room if minima[i] <= room else 0
        widths.append(fitting)
        free -= fitting + GAP if fitting else 0
    return widths


def _padded(text: str, width: int, right: bool) -> str:
    """The text in `width` columns, shortened if it is wider."""
    from rich.cells import cell_len, chop_cells

    if cell_len(text) > width:
        text = chop_cells(text, width - 1)[0] + "…"
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _cell(text: str) -> str:
    return " ".join(visible(text).split())
