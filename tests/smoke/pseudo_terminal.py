"""A program in a pseudo-terminal, and the screen that a user would see."""

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pexpect
import pyte
import pytest

PATIENCE_S = 100


class PseudoTerminal:
    """Runs `command` in it. `shows` waits for text on the screen."""

    def __init__(self, command: Sequence[str], columns: int = 100, lines: int = 24) -> None:
        self.child: pexpect.spawn[str] = pexpect.spawn(
            command[0],
            list(command[1:]),
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            encoding="utf-8",
            timeout=PATIENCE_S,
            dimensions=(lines, columns),
        )
        self._screen = pyte.HistoryScreen(columns, lines, history=10_000, ratio=1)
        # Answers the terminal's queries, such as for the cursor position.
        self._screen.write_process_input = self.send
        self._stream = pyte.Stream(self._screen)
        self.written = ""
        # A pause before each key would only hide keys sent too early.
        self.child.delaybeforesend = None

    def send(self, data: str, shows: str = "") -> None:
        """Type something, and wait until the screen matches what it `shows` then."""
        self.child.send(data)
        if shows:
            self.shows(shows)

    def shows(self, pattern: str) -> None:
        """Wait until the screen matches; `^` and `$` match at line ends."""
        self._read_until(lambda: re.search(pattern, self.text(), re.MULTILINE) is not None)

    def waits_after(self, text: str) -> None:
        """Wait until the cursor is after `text`, spaces included, on a separate line."""
        screen = self._screen
        self._read_until(lambda: screen.display[screen.cursor.y][: screen.cursor.x] == text)

    def ends(self) -> int | None:
        """Wait for the program to end; return its exit status, as `subprocess` gives it."""
        self.child.expect(pexpect.EOF)
        written = self.child.before or ""
        self.written += written
        self._stream.feed(written)
        self.child.close()
        return self.child.exitstatus or -(self.child.signalstatus or 0)

    def text(self) -> str:
        """The text on the screen, without what has scrolled off."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def _read_until(self, seen: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not seen():
            try:
                left_s = deadline_s - time.monotonic()
                if left_s < 0:
                    raise pexpect.TIMEOUT("it writes, but not this")
                written = self.child.read_nonblocking(1000, timeout=left_s)
            except (pexpect.EOF, pexpect.TIMEOUT):
                latest = ascii(self.written[-500:])
                pytest.fail(f"not on the screen:\n{self.text()}\nwritten last: {latest}")
            self.written += written
            self._stream.feed(written)
