"""What commands list or show: tables, findings, facts and manual pages; lines for programs.

Rich is imported only for a terminal.
"""

import io
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from textwrap import indent
from typing import TYPE_CHECKING, Any

from mlxchat.terminal import is_dumb, visible
from mlxchat.terminal.output import Messages, Stdout, wrap
from mlxchat.units import format_bytes, json_line

if TYPE_CHECKING:
    from mlxchat.models.describe import ModelFacts

GAP = 2
# A column that is cut to fit is at least this wide, and the first one beside it.
MIN_WIDTH, NAME = 16, 22
# How much of a line is shown around what is found, and before it.
CHARS_FOUND, CHARS_BEFORE = 240, 60
# The widths of a finding's first two columns, and of a terminal that has room for the third.
VERDICT, TOPIC, WIDE = 8, 17, 80
# The table of models.
COLUMNS = ("NAME", "SIZE", "FITS", "MEMORY", "HERE", "PARAMETERS", "QUANTIZATION")
NUMBERS = ("SIZE", "MEMORY", "PARAMETERS")
# The widest page of the manual.
PAGE_COLUMNS = 100

PAGE_LINK = re.compile(r"(?<!!)\[([^]]+)\]\((?:(\w+)\.md)?(?:#[\w-]+)?\)")
CHART = re.compile(r"!\[([^]]*)\]\([^)]+\)")


def write(text: str) -> None:
    """Lines to stdout, which are wrapped on a terminal. Raises OutputError."""
    stdout, columns = Stdout(), shutil.get_terminal_size().columns
    if stdout.is_terminal:
        text = "".join(f"{wrap(line, columns, GAP)}\n" for line in visible(text).splitlines())
    stdout.write(text)


def write_json_lines(values: Iterable[dict[str, Any]]) -> None:
    Stdout().write("".join(map(json_line, values)))


def write_table(headers: Sequence[str], rows: Sequence[Sequence[str]], **layout: Any) -> None:
    """A table on a terminal, in a pager if it is longer than that; tab-separated lines in a pipe;
    nothing if there are no rows. `layout` is for `format_table`."""
    if rows:
        stdout = Stdout()
        _write_long(stdout, format_table(headers, rows, for_terminal=stdout.is_terminal, **layout))


def _write_long(stdout: Stdout, text: str) -> None:
    if stdout.is_terminal and text.count("\n") >= shutil.get_terminal_size().lines:
        page(text)
    else:
        stdout.write(text)


def minute(seconds: float) -> str:
    """A time in seconds since 1970, to the minute; empty if it is not known, 0."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M") if seconds else ""


def format_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right_aligned: Collection[str] = (),
    cut: Sequence[str] | None = None,
    for_terminal: bool,
) -> str:
    """Lay out `rows` below `headers`; in a pipe, as lines without headers.

    On a narrow terminal cells are wrapped; a row is a line for each cell where a word of a header,
    of the first column or of a `right_aligned` one would be cut. With `cut`, each row stays one
    line instead: the columns it names are shortened, the last ones left out if they do not fit, the
    first that it names after all others; a long cell of the first column is folded beside that.

    Cells may come from files: control characters in them are made visible.
    """
    cells = [[" ".join(visible(text).split()) for text in row] for row in rows]
    if not for_terminal:
        return "".join("\t".join(row) + "\n" for row in cells)
    from rich.box import SIMPLE
    from rich.cells import chop_cells
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # The width of the real terminal, but no styles.
    console = Console(file=io.StringIO(), width=shutil.get_terminal_size().columns)
    columns = {header: [row[n] for row in cells] for n, header in enumerate(headers)}
    shown = headers
    if cut is not None:
        room = min(console.width, max(console.width * 2 // 5, NAME) if cut else console.width)
        shown = _fitting(columns, cut, console.width, room)
        columns[headers[0]] = ["\n".join(chop_cells(row[0], room)) for row in cells]
    is_short = 2 * max(len(row[0]) for row in (headers, *cells)) <= console.width
    table = Table(box=SIMPLE, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for header in shown:
        table.add_column(
            header,
            justify="right" if header in right_aligned else "left",
            # Rich narrows the others first.
            no_wrap=header not in cut if cut is not None else is_short and header == headers[0],
            overflow="fold" if cut is None else "ellipsis",
        )
    for row in zip(*(columns[header] for header in shown), strict=True):
        table.add_row(*(Text(text, no_wrap=cut is not None) for text in row))
    with console.capture() as captured:
        console.print(table)
    drawn = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
    whole = (headers, *(columns[header] for header in {headers[0], *right_aligned}))
    if cut is None and not {*" ".join(map(" ".join, whole)).split()} <= {*drawn.split()}:
        named = [zip(headers, row, strict=True) for row in cells]
        lines = (
            [wrap(f"{n}: {cell}", console.width, GAP) for n, cell in each if cell] for each in named
        )
        drawn = "\n".join("".join(f"{line}\n" for line in each) for each in lines)
    return drawn


def _fitting(
    columns: Mapping[str, Sequence[str]], cut: Sequence[str], width: int, room: int
) -> list[str]:
    """The headers of the columns that fit; no cell of another than `cut` is wider than `room`."""
    from rich.cells import cell_len

    least = {
        header: min(max(map(cell_len, (header, *cells))), MIN_WIDTH if header in cut else room)
        for header, cells in columns.items()
    }
    first, *others = columns
    others.sort(key=lambda header: header in cut[:1], reverse=True)
    while others and sum(least[each] + GAP for each in (first, *others)) - GAP > width:
        others.pop()
    return [header for header in columns if header in (first, *others)]


def write_finds(rows: Sequence[Sequence[str]], titles: Sequence[str], at: Sequence[int]) -> None:
    """Lines, the last cells. A terminal shows what is found `at` a place in each, below a title."""
    if not (stdout := Stdout()).is_terminal:
        write_table((), rows)
        return
    columns = shutil.get_terminal_size().columns - GAP
    finds = [wrap(around(place, row[-1]), columns) for row, place in zip(rows, at, strict=True)]
    pairs = zip(titles, finds, strict=True)
    lines = (f"{wrap(one, columns)}\n{indent(find, GAP * ' ')}\n" for one, find in pairs)
    _write_long(stdout, visible("".join(lines)))


def around(at: int, line: str) -> str:
    """What is found at the place in the line, with some words on both sides."""
    far = max(at - CHARS_BEFORE, 0)
    begin = line.rfind(" ", 0, far) + 1 or far * (far > CHARS_BEFORE)
    end = begin + CHARS_FOUND
    end = end if end >= len(line) else max(line.rfind(" ", at, end + 1), 0) or end
    return f"{'… ' * (begin > 0)}{line[begin:end]}{' …' * (end < len(line))}"


def format_finding(verdict: str, topic: str, text: str, advice: str | None) -> str:
    """The verdict, the topic, the text, and below it the advice after an arrow."""
    first, columns = f"{verdict:{VERDICT}} {topic:{TOPIC}} ", shutil.get_terminal_size().columns
    margin = len(first) if columns >= WIDE else VERDICT + 1
    lines = [f"{first}{text}", *([] if advice is None else [f"{'':{margin}}→ {advice}"])]
    return "".join(f"{wrap(visible(each), columns, margin)}\n" for each in lines)


def write_models(models: "Sequence[ModelFacts]", *, as_json: bool) -> None:
    if as_json:
        write_json_lines(map(asdict, models))
        return
    write_table(COLUMNS, [_row(each) for each in models], right_aligned=NUMBERS, cut=())
    for each in models:
        if each.problem is not None:
            Messages().note(f"{each.name}: {each.problem}")


def write_model(facts: "ModelFacts", *, as_json: bool) -> None:
    """What is known about a model, and how to get one that is not on this disk."""
    if as_json:
        write_json_lines([asdict(facts)])
        return
    _, size, fits, memory, here, parameters, quantization = _row(facts)
    if facts.directory is None and facts.here != "yes":
        here += f": `mlxchat models pull {facts.hub_id}` downloads it"
    rows = {
        "name": facts.name,
        "repository": facts.hub_id if facts.hub_id != facts.name else None,
        "type": facts.model_type,
        "parameters": parameters,
        "size": size,
        "quantization": quantization,
        "context": f"{facts.context_length:,} tokens" if facts.context_length else None,
        "KV per token": _bytes(facts.kv_bytes_per_token),
        "lookup": facts.lookup,
        "fits here": f"{fits}, needs {memory}",
        "directory" if facts.directory else "here": facts.directory or here,
    }
    known = {label: value for label, value in rows.items() if value}
    width = max(map(len, known))
    write("".join(f"{label:{width}}  {visible(value)}\n" for label, value in known.items()))


def _row(facts: "ModelFacts") -> list[str]:
    return [
        facts.name,
        format_bytes(facts.size_bytes),
        {True: "yes", False: "no", None: "?"}[facts.fits],
        _bytes(facts.memory_needed_bytes),
        facts.here,
        _count(facts.parameters or 0),
        facts.quantization or "",
    ]


def _bytes(number: int | None) -> str:
    return "" if number is None else format_bytes(number)


def _count(number: int) -> str:
    """As model names spell it: 135M, 1.2B."""
    value, unit = (number / 1e9, "B") if number >= 1e9 else (number / 1e6, "M")
    return f"{value:.{0 if value >= 100 else 1}f}{unit}" if number else ""


def show_page(markdown: str) -> None:
    """Show a page of the manual, in a pipe as it is written."""
    stdout = Stdout()
    if stdout.is_terminal:
        page(render_page(markdown, min(shutil.get_terminal_size().columns, PAGE_COLUMNS)))
    else:
        stdout.write(markdown)


def render_page(markdown: str, columns: int) -> str:
    """The page for a terminal. A link to another page names the command that shows it."""
    from rich.console import Console, RenderResult
    from rich.markdown import CodeBlock, Markdown
    from rich.text import Text

    from mlxchat.terminal.reply import WideTable

    class Code(CodeBlock):
        def __rich_console__(self, *_: Any) -> RenderResult:
            # The terminal breaks long lines, which can be copied then.
            yield Text(indent(str(self.text).rstrip(), "    "), no_wrap=True, overflow="ignore")

    class Page(Markdown):
        elements = Markdown.elements | {"table_open": WideTable, "code_block": Code, "fence": Code}

    markdown = PAGE_LINK.sub(
        lambda at: at[1] + f" (help {at[2]})" * bool(at[2]), CHART.sub(r"(chart: \1)", markdown)
    )
    plain = is_dumb() or bool(os.environ.get("NO_COLOR"))
    console = Console(file=(file := io.StringIO()), width=columns, force_terminal=not plain)
    console.print(Page(markdown, hyperlinks=False), crop=False)
    return file.getvalue()


def page(text: str) -> None:
    """Show the text in $PAGER, or less."""
    import pydoc

    from mlxchat.terminal.worker import ctrl_c_ignored

    # pydoc prefers that for manual pages, which may be no pager for colors.
    os.environ.pop("MANPAGER", None)
    # Quit if the text fits the screen, leave it there, and pass colors through.
    os.environ["LESS"] = f"{os.environ.get('LESS') or '-FX'} -R"
    # The shell would say that it cannot be started, and the text be lost.
    if not shutil.which("".join(os.environ.get("PAGER", "").split()[:1])):
        os.environ.pop("PAGER", None)
    with ctrl_c_ignored():
        pydoc.pager(text)
