"""Restores the terminal, in any state and from any thread."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mlxchat.terminal import is_dumb
from mlxchat.terminal.modes import apply, settings_of

_SHOW_CURSOR = b"\x1b[?25h"

# Everything that is being drawn, as functions that stop it. The process has one terminal.
_drawing: list[Callable[[], object]] = []


class TerminalLine:
    """The line of the terminal that text is written to; the cursor is within it if `is_open`."""

    is_open = False

    @classmethod
    def writing(cls) -> None:
        """Text is about to be written: nothing else may be drawn on its line."""
        for stop in reversed(_drawing):
            stop()
        cls.is_open = True

    @classmethod
    def end(cls) -> str:
        """What ends the line, before a message on stderr."""
        is_needed = cls.is_open and sys.stderr.isatty()
        cls.is_open = cls.is_open and not is_needed
        return "\n" if is_needed else ""


@contextmanager
def stopped_at_the_end(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` when the body ends, or before another thread ends the process."""
    _drawing.append(stop)
    try:
        yield
    finally:
        _drawing.remove(stop)
        stop()


def restorer() -> Callable[[], None]:
    """Return a function that stops all drawing, restores the terminal's current settings, shows the
    cursor, and starts a new line for the shell."""
    before = settings_of(0)

    def restore() -> None:
        for stop in reversed(_drawing):
            stop()
        if before is not None and before != settings_of(0):
            # Otherwise a background process would be stopped.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
            apply(0, before)
        for descriptor in (2, 1):
            if os.isatty(descriptor):
                cursor = b"" if is_dumb() else _SHOW_CURSOR
                with suppress(OSError):
                    os.write(descriptor, cursor + b"\r\n")
                return

    return restore


def say_on_own_line(text: str) -> None:
    """Write a line on stderr, if that is a terminal, below the line of the cursor, which has at
    least the ^C that the terminal echoed."""
    if sys.stderr is not None and sys.stderr.isatty():
        with suppress(OSError):
            TerminalLine.is_open = False
            sys.stderr.write(f"\n{text}\n")
            sys.stderr.flush()
