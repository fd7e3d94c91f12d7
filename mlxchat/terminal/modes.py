"""Terminal modes, echo and size: the only importer of termios."""

import fcntl
import os
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

Settings = list[Any]

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


def is_in_foreground(terminal: int) -> bool:
    """Whether this process may change the terminal; one in the background would be stopped."""
    with suppress(OSError):
        return os.tcgetpgrp(terminal) == os.getpgrp()
    return False


@contextmanager
def set_to(terminal: int, settings: Settings) -> Iterator[None]:
    """Apply these settings while the body runs, then restore the previous ones."""
    before = termios.tcgetattr(terminal)
    try:
        termios.tcsetattr(terminal, termios.TCSANOW, settings)
        yield
    finally:
        apply(terminal, before)


def held(terminal: int) -> Settings:
    """Keys are kept without echo until they are read; Ctrl-C still interrupts."""
    # Without IEXTEN only signal keys are special. NOFLSH: Ctrl-C stops the reply without discarding
    # the draft of the next message. ICRNL: PlainInput gets Enter as a newline; Editor accepts
    # either.
    before = termios.tcgetattr(terminal)
    settings = [*before[:_CC], list(before[_CC])]
    settings[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    settings[_LFLAG] |= termios.ISIG | termios.NOFLSH
    settings[_IFLAG] |= termios.ICRNL
    settings[_CC][termios.VMIN], settings[_CC][termios.VTIME] = 1, 0
    return settings


def unread_bytes(pipe: int) -> int:
    """How many bytes are still unread; 0 if unknown."""
    with suppress(OSError):
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0
