"""Terminal modes: the only importer of termios.

Keeps keys that are pressed while nothing reads them.
"""

import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

Settings = list[Any]

STDIN = 0
_IFLAG, _LFLAG, _CC = 0, 3, 6


def settings_of(terminal: int) -> Settings | None:
    """The current settings; None if it is not a terminal, or has been closed."""
    with suppress(termios.error, OSError):
        return termios.tcgetattr(terminal)
    return None


def apply(terminal: int, settings: Settings) -> None:
    """Change the settings if the terminal still exists. Typed input is kept."""
    # TCSANOW: the other actions may discard input.
    with suppress(termios.error, OSError):
        termios.tcsetattr(terminal, termios.TCSANOW, settings)


def held(before: Settings) -> Settings:
    """Keys are kept without echo until they are read; Ctrl-C still interrupts."""
    # Without IEXTEN only signal keys are special. NOFLSH: Ctrl-C stops the reply without discarding
    # the draft of the next message. ICRNL: PlainInput gets Enter as a newline; Editor accepts
    # either.
    settings = [*before[:_CC], list(before[_CC])]
    settings[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    settings[_LFLAG] |= termios.ISIG | termios.NOFLSH
    settings[_IFLAG] |= termios.ICRNL
    settings[_CC][termios.VMIN], settings[_CC][termios.VTIME] = 1, 0
    return settings


class HeldKeys:
    """While the body runs, typed keys, and reports of the terminal itself, stay in the kernel's
    buffer without an echo; Ctrl-C still interrupts. Nothing happens if stdin is not a terminal."""

    def __init__(self) -> None:
        # None if it is not a terminal.
        self._found = settings_of(STDIN)
        self._is_lent = False

    def __enter__(self) -> Self:
        self.hold()
        return self

    def __exit__(self, *_: object) -> None:
        if self._found is not None:
            apply(STDIN, self._found)

    def hold(self) -> None:
        """Do so again, after the shell has had the terminal."""
        # A process in the background would be stopped.
        with suppress(OSError):
            if self._found and not self._is_lent and os.tcgetpgrp(STDIN) == os.getpgrp():
                apply(STDIN, held(self._found))

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lend the terminal, with the original settings, to what else reads from it."""
        self.__exit__()
        self._is_lent = True
        try:
            yield
        finally:
            self._is_lent = False
            self.hold()
