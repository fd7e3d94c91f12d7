"""Rows at the bottom of a terminal that are replaced in place.

Rows are written as given; callers decide what they show and when they become permanent.
"""

import re
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console

from mlxchat.errors import OutputError

_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_STYLE = re.compile(r"(\x1b\[[\d;]*m)")
_ERASE_BELOW = "\r\x1b[J"


class Row(NamedTuple):
    """A row of the screen: its text without the newline, and its width."""

    ansi: str
    cells: int


class LiveRows:
    """Rows at the bottom of a terminal that can still be replaced; everything above is permanent.

    The cursor is always at the start of the row below them. Rows stand from then on once they may
    have moved: the terminal's size has changed, in which some terminals wrap them again and others
    do not, or a shell has written below them. What follows goes below without repeating them.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._size = console.size
        # The live rows as laid out; those of them that stand; and what is drawn below these.
        self._live: list[Row] = []
        self._standing: list[Row] = []
        self._shown: list[Row] = []
        # Whether all rows are drawn, even if they scroll out of reach.
        self._scrolls = self._may_have_moved = False
        self.has_printed = False

    def stand(self) -> None:
        """From now on, leave what is drawn in place. Callable from any thread."""
        self._may_have_moved = True

    def _let_stand(self) -> None:
        self._size, self._may_have_moved = self._console.size, False
        if len(self._standing) + len(self._shown) < len(self._live):
            # Some rows were left out for lack of room: only here are rows repeated.
            self._live, self._scrolls = [], True
        self._standing, self._shown = self._live, []

    def draw(self, final: list[Row], live: list[Row]) -> None:
        """Replace the live rows with `final`, which is permanent, and `live`. If the screen is too
        small, only the last rows of `live` are shown. Unchanged rows are not written again."""
        if self._console.size != self._size or self._may_have_moved:
            self._let_stand()
        scrolls = self._scrolls or bool(self._standing)
        shown = live if scrolls else live[-max(1, self._size.height - 2) :]
        rows = _below([*final, *shown], self._standing)
        same = next(
            (i for i, (a, b) in enumerate(zip(rows, self._shown, strict=False)) if a != b),
            min(len(rows), len(self._shown)),
        )
        if rows != self._shown:
            self._write(self._height(self._shown[same:]), rows[same:])
        if final:
            self._standing, self._scrolls = self._standing[len(final) :], False
            rows = _below(shown, self._standing)
        self._live, self._shown = live, rows
        if scrolls and self._height(rows) >= self._size.height - 2:
            self._standing, self._shown = live[:-1], live[-1:]
        self.has_printed = self.has_printed or bool(final)

    def _height(self, rows: list[Row]) -> int:
        """How many screen rows `rows` occupy: those laid out for a wider terminal are wrapped."""
        width = self._size.width
        height = sum(max(1, -(-row.cells // width)) for row in rows)
        return min(height, self._size.height - 1)

    def _write(self, up: int, rows: list[Row]) -> None:
        move = f"\x1b[{up}A" if up else ""
        text = "".join(row.ansi + "\n" for row in rows)
        try:
            self._console.file.write(_HIDE_CURSOR + move + _ERASE_BELOW + text + _SHOW_CURSOR)
            self._console.file.flush()
        except OSError as error:
            raise OutputError(f"cannot write to the terminal: {error.strerror}") from error


def _below(rows: list[Row], standing: list[Row]) -> list[Row]:
    """What of `rows` is new compared with `standing`, an earlier state of their beginning.

    Markdown that has been completed since may have other marks and line breaks: letters and digits
    are counted.
    """
    left = sum(_letters(row) for row in standing)
    for number, row in enumerate(rows):
        letters = _letters(row)
        if left == 0 and number >= len(standing):
            return rows[number:]
        if letters > left:
            return [_after(row, left, standing[-1]), *rows[number + 1 :]]
        left -= letters
    return []


def _letters(row: Row) -> int:
    return sum(map(str.isalnum, _STYLE.sub("", row.ansi)))


def _after(row: Row, letters: int, standing: Row) -> Row:
    """The row without its first letters and digits, which are at the end of `standing`."""
    marks = re.search(r"[\W_]*\Z", _STYLE.sub("", standing.ansi))
    assert marks is not None
    ansi, text = "", ""
    for part in _STYLE.split(row.ansi):
        if part.startswith("\x1b"):
            ansi += part
            continue
        for character in part:
            if letters > 0:
                letters -= character.isalnum()
            else:
                ansi, text = ansi + character, text + character
    repeated = marks[0].strip()
    if not text.startswith(repeated):
        repeated = ""
    rest = text.removeprefix(repeated).lstrip(" ")
    ansi = ansi.replace(text[: len(text) - len(rest)], "", 1)
    return Row(ansi, cell_len(rest))
