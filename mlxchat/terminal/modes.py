"""Terminal modes: the only importer of termios.

Keeps keys that are pressed while nothing reads them.
"""

import os
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

Settings = list[Any]

STDIN = 0
_IFLAG, _LFLAG, _CC = 0, 3, 6


class Keys:
    """The terminal of stdin, if it is one, and the settings it had at first. While they are held,
    typed keys, and reports of the terminal itself, stay in the kernel's buffer without an echo
    until they are read; Ctrl-C still interrupts."""

    def __init__(self) -> None:
        self._found: Settings | None = None
        with suppress(termios.error, OSError):
            self._found = termios.tcgetattr(STDIN)
        self._is_held = False

    def hold(self) -> None:
        self._is_held = True
        self.hold_again()

    def hold_again(self) -> None:
        """After the shell has had the terminal."""
        # A process in the background would be stopped.
        with suppress(OSError):
            if self._found and self._is_held and os.tcgetpgrp(STDIN) == os.getpgrp():
                _apply(_held(self._found))

    def restore(self) -> None:
        if self._found and self._is_held:
            # Otherwise a process in the background would be stopped.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
            _apply(self._found)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._is_held = False

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lend the terminal, with the original settings, to what else reads from it."""
        self.restore()
        try:
            yield
        finally:
            self.hold()


def _held(before: Settings) -> Settings:
    # Without IEXTEN only signal keys are special. NOFLSH: Ctrl-C stops the reply without discarding
    # the draft of the next message. ICRNL: PlainInput gets Enter as a newline; Editor accepts
    # either.
    settings = [*before[:_CC], list(before[_CC])]
    settings[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    settings[_LFLAG] |= termios.ISIG | termios.NOFLSH
    settings[_IFLAG] |= termios.ICRNL
    settings[_CC][termios.VMIN], settings[_CC][termios.VTIME] = 1, 0
    return settings


def _apply(settings: Settings) -> None:
    """Change the settings if the terminal still exists. Typed input is kept."""
    # TCSANOW: the other actions may discard input.
    with suppress(termios.error, OSError):
        termios.tcsetattr(STDIN, termios.TCSANOW, settings)
