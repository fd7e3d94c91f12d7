"""Leaving the terminal as it was found, from whatever state and any thread."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mlxchat.terminal import is_dumb
from mlxchat.terminal.modes import apply, settings_of

_SHOW_CURSOR = b"\x1b[?25h"

# What draws by itself now, by what stops it: of the terminal there is one for the whole process.
_drawing: list[Callable[[], object]] = []


@contextmanager
def stopped_at_the_end(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` as the body ends, or before the terminal is left from another thread."""
    _drawing.append(stop)
    try:
        yield
    finally:
        _drawing.remove(stop)
        stop()


def restorer() -> Callable[[], None]:
    """What stops whatever is drawn, brings the terminal's settings back to what they are now, shows
    the cursor, and begins a new line for the shell."""
    before = settings_of(0)

    def restore() -> None:
        for stop in reversed(_drawing):
            stop()
        if before is not None and before != settings_of(0):
            # Else a program in the background would be stopped for it.
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
    """Write a line on stderr, if that is a terminal, after whatever is on the line of the cursor:
    at least the ^C that the terminal has shown."""
    if sys.stderr is not None and sys.stderr.isatty():
        with suppress(OSError):
            sys.stderr.write(f"\n{text}\n")
            sys.stderr.flush()
