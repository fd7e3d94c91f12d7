"""Rows at the bottom of a terminal that are replaced in place.

Rows are written as given; callers decide what they show and when they become permanent.
"""

from typing import NamedTuple

from rich.console import Console

from mlxchat.errors import OutputError

_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_ERASE_BELOW = "\r\x1b[J"


class Row(NamedTuple):
    """A row of the screen: its text without the newline, and its width."""

    ansi: str
    cells: int


class LiveRows:
    """Rows at the bottom of a terminal that can still be replaced; everything above is permanent.

    The cursor is always at the start of the row below them.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: list[Row] = []
        self._width = console.width
        self.has_printed = False

    def draw(self, final: list[Row], live: list[Row]) -> None:
        """Replace the live rows with `final`, which is permanent, and `live`. If the screen is too
        small, only the last rows of `live` are shown. Unchanged rows are not written again."""
        live = live[-max(1, self._console.height - 2) :]
        rows = [*final, *live]
        same = self._count_same(rows)
        if rows != self._shown:
            self._write(self._height(self._shown[same:]), rows[same:])
        self._shown = live
        self._width = self._console.width
        self.has_printed = self.has_printed or bool(final)

    def _count_same(self, rows: list[Row]) -> int:
        if self._console.width != self._width:
            return 0
        pairs = enumerate(zip(rows, self._shown, strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(len(rows), len(self._shown)))

    def _height(self, rows: list[Row]) -> int:
        """How many screen rows `rows` occupy: a terminal that became narrower has wrapped them."""
        width = self._console.width
        height = sum(max(1, -(-row.cells // width)) for row in rows)
        return min(height, self._console.height - 1)

    def _write(self, up: int, rows: list[Row]) -> None:
        move = f"\x1b[{up}A" if up else ""
        text = "".join(row.ansi + "\n" for row in rows)
        try:
            self._console.file.write(_HIDE_CURSOR + move + _ERASE_BELOW + text + _SHOW_CURSOR)
            self._console.file.flush()
        except OSError as error:
            raise OutputError(f"cannot write to the terminal: {error.strerror}") from error
