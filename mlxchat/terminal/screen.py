"""A chat's dim notices and rules, on the stream that reaches the user's terminal."""

import os
import stat
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from mlxchat.terminal import is_dumb, visible
from mlxchat.terminal.modes import unread_bytes

# The columns of a rule without its text.
RULE_CELLS = 2
# How long `tee` may take to write what it has read.
PASSED_ON_S = 0.1
# A reader that takes longer is not writing to the terminal.
MAX_WAIT_S = 1.0
POLL_S = 0.01


class Screen:
    """Lines between replies. All text is untrusted."""

    def __init__(self, terminal: TextIO | None = None) -> None:
        """Writes to `terminal`, by default stdout."""
        self._console = Console(file=terminal, highlight=False, markup=False, emoji=False)

    def say(self, text: str) -> None:
        self._console.print(Text(visible(text), style="dim"))

    def complain(self, error: object) -> None:
        self._console.print(Text(visible(str(error)), style="red"))

    def rule(self, text: str) -> None:
        """A line across the screen with text in it; text alone if there is no room for a line."""
        if is_dumb():
            self._console.print(f"-- {visible(text)} --")
        elif cell_len(visible(text)) + RULE_CELLS > self._console.width:
            self._console.print(Text(visible(text), style="dim"))
        else:
            self._console.print(Rule(Text(visible(text), style="dim"), style="dim", align="left"))

    def draw(self, lines: Iterable[str]) -> None:
        """Print lines without wrapping."""
        for line in lines:
            self._console.print(Text(line, style="dim"), no_wrap=True, overflow="crop")

    @property
    def columns(self) -> int:
        return self._console.width


def terminal_stream() -> TextIO:
    """Stdout if it is a terminal, else stderr, else the terminal of stdin."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and stream.isatty():
            return stream
    if os.isatty(0):
        return Path(os.ttyname(0)).open("w", encoding="utf-8", errors="replace")
    return sys.stdout


def wait_for_pipe() -> None:
    """If stdout is a pipe, let its reader, which may be `tee`, write to the same terminal first."""
    descriptor = sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return
    deadline_s = time.monotonic() + MAX_WAIT_S
    while unread_bytes(descriptor) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    time.sleep(PASSED_ON_S)
