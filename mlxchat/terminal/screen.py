"""What a terminal shows besides replies: dim notices, rules, the line that moves during a long
operation. And the clipboard, by way of the same terminal."""

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.control import Control
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.rule import Rule
from rich.table import Column
from rich.text import Text

from mlxchat.terminal import is_dumb, is_in_background, visible
from mlxchat.terminal.output import MARGIN, wrap
from mlxchat.units import count

# The columns of a rule without its text.
RULE_CELLS = 2
# From this width on, there is room for a bar.
WIDE = 75


class Screen:
    """Lines between replies. All text is untrusted."""

    def __init__(self, file: TextIO | None = None) -> None:
        """Writes to the file, by default stdout."""
        self._console = Console(file=file)

    def say(self, text: str, style: str = "dim", *, indent: int = 0) -> None:
        lines = (wrap(line, self.columns, indent) for line in visible(text).split("\n"))
        self._console.print(Text("\n".join(lines), style=style), soft_wrap=True)

    def complain(self, error: object) -> None:
        self.say(str(error), "red")

    def rule(self, text: str) -> None:
        """A line across the screen with text in it; text alone if there is no room for a line."""
        if is_dumb():
            self.say(f"-- {text} --")
        elif cell_len(visible(text)) + RULE_CELLS > self._console.width:
            self.say(text)
        else:
            self._console.print(Rule(Text(visible(text), style="dim"), style="dim", align="left"))

    def draw(self, lines: Iterable[str]) -> None:
        """Print lines without wrapping."""
        for line in lines:
            self._console.print(Text(line, style="dim"), no_wrap=True, overflow="crop")

    @property
    def columns(self) -> int:
        # Rich takes a dumb terminal to have 80 columns.
        return shutil.get_terminal_size().columns if is_dumb() else self._console.width


def copy_to_clipboard(text: str) -> str:
    """Copy with macOS's `pbcopy`, else the terminal's OSC 52; return a short report."""
    copied = text.encode("utf-8", "replace")
    size = count(len(text), "character")
    # Over ssh, pbcopy would fill the clipboard of the wrong machine.
    if "SSH_CONNECTION" not in os.environ and shutil.which("pbcopy"):
        # Without a locale pbcopy assumes Mac Roman.
        locale = os.environ | {"LC_CTYPE": "UTF-8"}
        if subprocess.run(["pbcopy"], input=copied, env=locale, check=False).returncode == 0:
            return f"copied {size}"
    if is_dumb() or not sys.stdout.isatty():
        return "no clipboard here: /export writes a file"
    print(f"\x1b]52;c;{base64.b64encode(copied).decode()}\x07", end="", flush=True)
    # No terminal confirms it.
    return f"sent {size} to the terminal (OSC 52), which may not support it"


class _Stderr(Console):
    """The cursor stays visible: Ctrl-Z may hand the terminal to the shell at any moment."""

    @property
    def options(self) -> ConsoleOptions:
        return super().options.update_width(max(self.width - MARGIN, 1))

    @property
    def is_terminal(self) -> bool:
        """Not while the shell has it: the line, also below a message, erases what is typed."""
        self.is_interactive = super().is_terminal and not is_in_background(2)
        return self.is_interactive

    def control(self, *control: Control) -> None:
        if self.is_terminal:
            super().control(*control)

    def show_cursor(self, show: bool = True) -> bool:
        return False


def moving_line(text: str, total: int | None, *, is_animated: bool) -> Progress:
    """A spinner, a bar if there is a total and room, and the text of the only task. Call `start`
    and `stop`; it disappears when stopped."""
    console = _Stderr(stderr=True)
    column = Column(no_wrap=True, overflow="ellipsis")
    line = Progress(
        SpinnerColumn(),
        *([BarColumn(bar_width=20)] if total and console.width >= WIDE else []),
        TextColumn("{task.description}", markup=False, table_column=column),
        console=console,
        # stdout may not be a terminal.
        redirect_stdout=False,
        transient=True,
        auto_refresh=is_animated,
    )
    line.add_task(text, total=total)
    return line
