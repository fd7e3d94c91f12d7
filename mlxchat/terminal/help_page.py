"""The layout of a help page: sections of names with their texts, for any width of the terminal.

A name is never cut or hyphenated. If it leaves no room for its text, the text goes below it.
"""

import os
import shutil
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

MAX_COLUMNS = 80
# In a narrower terminal, every text goes below its name.
TWO_COLUMNS_FROM = 60
MAX_NAME = 26
INDENT = 2
GAP = 2


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with rows, each a name and its meaning."""

    heading: str
    rows: Sequence[tuple[str, str]]


def terminal_columns() -> int:
    """The width of a page: that of the terminal, even if stdout is piped into a pager."""
    columns = shutil.get_terminal_size((0, 0)).columns
    for stream in (2, 0):
        if not columns:
            with suppress(OSError):
                columns = os.get_terminal_size(stream).columns
    return min(columns or MAX_COLUMNS, MAX_COLUMNS)


def format_sections(sections: Sequence[Section], columns: int) -> str:
    """The sections, a blank line between them, in lines of at most `columns` unless a word is
    longer. All texts begin in the same column."""
    names = [name for each in sections for name, _ in each.rows]
    widest = max((len(name) for name in names if len(name) <= MAX_NAME), default=0)
    return "\n".join(_section(each, widest, columns) for each in sections)


def _section(section: Section, widest: int, columns: int) -> str:
    if columns < TWO_COLUMNS_FROM:
        rows = [_stacked(name, text, columns) for name, text in section.rows]
    else:
        rows = [_side_by_side(name, text, widest, columns) for name, text in section.rows]
    return "".join([f"{section.heading}:\n", *rows])


def format_paragraph(text: str, columns: int) -> str:
    return "\n".join(_wrapped(text, columns)) + "\n"


def _side_by_side(name: str, text: str, widest: int, columns: int) -> str:
    start = INDENT + widest + GAP
    first, *rest = _wrapped(text, columns - start) or [""]
    if len(name) > widest:
        return _lines(f"{' ' * INDENT}{name}", *(f"{' ' * start}{line}" for line in (first, *rest)))
    beginning = f"{' ' * INDENT}{name:{widest}}{' ' * GAP}{first}"
    return _lines(beginning, *(f"{' ' * start}{line}" for line in rest))


def _stacked(name: str, text: str, columns: int) -> str:
    names = _broken(name.strip(), columns - INDENT)
    texts = _wrapped(text, columns - 3 * INDENT)
    indented = [f"{' ' * INDENT}{line}" for line in names]
    return _lines(*indented, *(f"{' ' * 3 * INDENT}{line}" for line in texts))


def _broken(name: str, columns: int) -> list[str]:
    """The name in lines, broken only between words and after `|`, which separates choices."""
    lines = [""]
    for word in name.replace("|", "|\0").replace(" ", " \0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > columns:
            lines.append(" " * 2 * INDENT)
        lines[-1] += word
    return [line.rstrip() for line in lines]


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, max(columns, 1), break_long_words=False, break_on_hyphens=False)


def _lines(*lines: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in lines)
