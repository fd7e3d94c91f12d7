"""Renders a page of the manual for a terminal: Markdown in, lines out.

Code is never wrapped, so that a terminal copies it whole; comments that do not fit go above their
commands. A table that would be squeezed becomes a list. Models' Markdown, which is untrusted and
arrives in pieces, is for `markdown`.
"""

import io
import re
from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from rich.box import SIMPLE
from rich.console import Console
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

INDENT = 2
MAX_COLUMNS = 100

# A table column narrower than this, or a cell higher, is harder to read than a list.
MIN_WRAPPED_COLUMNS = 30
MAX_CELL_LINES = 4
GAP = 2

COMMENTED = re.compile(r"(\S.*?) {2,}(# .+)")

BOLD = Style(bold=True)
CODE = Style(color="cyan", bold=True)
TITLE = Style(bold=True, underline=True)
QUIET = Style(dim=True)
STYLES = {"strong": BOLD, "em": Style(italic=True), "code_inline": CODE}


def render_page(markdown: str, columns: int, *, has_escapes: bool) -> str:
    """Lay out a page of the manual, with or without escape sequences for colors."""
    console = Console(
        file=io.StringIO(),
        width=max(min(columns, MAX_COLUMNS), 20),
        force_terminal=has_escapes,
        color_system="standard" if has_escapes else None,
        highlight=False,
    )
    for at, node in enumerate(_parse(markdown, quotes_code=not has_escapes)):
        if at:
            console.print()
        _print_block(console, node, INDENT)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _parse(markdown: str, *, quotes_code: bool) -> list[SyntaxTreeNode]:
    """The blocks of a page, without comments. Code that no color can mark keeps its quotes."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    for piece in (each for token in tokens for each in token.children or ()):
        if piece.type == "code_inline" and quotes_code:
            piece.content = f"`{piece.content}`"
    return [node for node in SyntaxTreeNode(tokens) if node.type != "html_block"]


def _print_block(console: Console, node: SyntaxTreeNode, indent: int) -> None:
    match node.type:
        case "heading":
            console.print(_inline(node, TITLE if node.tag == "h1" else BOLD))
        case "code_block" | "fence":
            _print_code(console, node.content, indent + INDENT)
        case "bullet_list" | "ordered_list":
            _print_list(console, node, indent)
        case "table":
            _print_table(console, node, indent)
        case _:
            console.print(Padding(_inline(node), (0, 0, 0, indent)))


def _print_code(console: Console, code: str, indent: int) -> None:
    lines = code.rstrip("\n").split("\n")
    if any(indent + len(line) > console.width for line in lines):
        lines = [part for line in lines for part in _comment_first(line)]
    for line in lines:
        text = Text(f"{' ' * indent}{line}" if line else "", style=CODE)
        console.print(text, soft_wrap=True)


def _comment_first(line: str) -> list[str]:
    """A command and the comment at its end, the comment first."""
    match = COMMENTED.fullmatch(line)
    return [line] if match is None else [match[2], match[1]]


def _print_list(console: Console, node: SyntaxTreeNode, indent: int) -> None:
    for number, item in enumerate(node.children, int(node.attrs.get("start", 1))):
        marker = "•" if node.type == "bullet_list" else f"{number}."
        columns = len(marker) + 1
        first, *rest = item.children
        text = _inline(first)
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=len(marker))
        grid.add_column()
        grid.add_row(marker, text)
        console.print(Padding(grid, (0, 0, 0, indent)))
        for each in rest:
            _print_block(console, each, indent + columns)


def _print_table(console: Console, node: SyntaxTreeNode, indent: int) -> None:
    header, *rows = [[_inline(cell) for cell in row] for part in node for row in part]
    columns = console.width - indent
    if _fits(header, rows, columns):
        aligned = [str(cell.attrs.get("style", "")) for cell in node.children[0].children[0]]
        table = _table(header, rows, ["right" in each for each in aligned])
        console.print(Padding(table, (0, 0, 0, indent)))
    else:
        for text, is_first in _stacked(header, rows):
            console.print(Padding(text, (0, 0, 0, indent + (0 if is_first else INDENT))))


def _table(header: Sequence[Text], rows: Sequence[Sequence[Text]], right: Sequence[bool]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, show_edge=False, show_header=any(header))
    for cell, is_right in zip(header, right, strict=True):
        table.add_column(cell, justify="right" if is_right else "left", header_style=BOLD)
    for row in rows:
        table.add_row(*row)
    return table


def _fits(header: Sequence[Text], rows: Sequence[Sequence[Text]], columns: int) -> bool:
    """Whether the table is readable at this width, its widest column wrapped."""
    natural = [max(text.cell_len for text in column) for column in zip(header, *rows, strict=True)]
    widest = max(natural)
    left = columns - sum(natural) - GAP * len(natural) + widest
    return widest <= left or (left >= MIN_WRAPPED_COLUMNS and widest <= (left - 8) * MAX_CELL_LINES)


def _stacked(header: Sequence[Text], rows: Sequence[Sequence[Text]]) -> Iterator[tuple[Text, bool]]:
    """The table as a list: a row's first cell, below it the others with their headers."""
    for row in rows:
        for at, (name, cell) in enumerate(zip(header, row, strict=True)):
            is_named = len(row) > 2 and name and (at or header[0])
            text = Text.assemble(name, ": ", cell) if is_named else cell.copy()
            if not at:
                text.stylize(BOLD)
            if cell:
                yield text, at == 0


def _inline(node: SyntaxTreeNode, style: Style | None = None) -> Text:
    """The text of a block, or of part of one, in one line."""
    text = Text(style=style or Style.null())
    for each in node.children:
        text.append_text(_piece(each))
    return text


def _piece(node: SyntaxTreeNode) -> Text:
    match node.type:
        case "text" | "code_inline":
            return Text(node.content, style=STYLES.get(node.type, ""))
        case "softbreak" | "hardbreak":
            return Text(" ")
        case "link":
            return _inline(node).append(_destination(str(node.attrs["href"])), QUIET)
        case "image":
            return Text(f"[chart: {node.content}]", style=QUIET)
        case _:
            return _inline(node, STYLES.get(node.type))


def _destination(href: str) -> str:
    """A link's target as shown to the reader: the command that shows the page, or the address."""
    page, _, _ = href.partition("#")
    if page.endswith(".md"):
        return f" (help {page.removesuffix('.md')})"
    return f" ({href})" if page else ""
