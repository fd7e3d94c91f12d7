"""Terminal modes: the only importer of termios.

Keeps keys that are pressed while nothing reads them, and puts the modes right after Ctrl-Z and
`fg`, when the shell has had the terminal.
"""

import fcntl
import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

Settings = list[Any]
# Gives back the terminal's original settings, with line editing and echo, while the body runs.
Released = Callable[[], AbstractContextManager[None]]

# What to do when the program continues. Stopping itself is left to the system: its default stops
# every thread at once, and does nothing if no shell could continue the program.
_acts: list[Callable[[], object]] = []

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


@contextmanager
def when_continued(act: Callable[[], object]) -> Iterator[None]:
    """Call `act` whenever the program continues while the body runs: from the signal watch, because
    the main thread may be busy, and again from the main thread, before it does anything else."""
    before = signal.signal(signal.SIGCONT, lambda *_: put_right())
    _acts.append(act)
    try:
        yield
    finally:
        _acts.remove(act)
        signal.signal(signal.SIGCONT, before)


def put_right() -> None:
    for act in tuple(_acts):
        act()


@contextmanager
def held_typeahead() -> Iterator[Released]:
    """Leave typed keys, and reports of the terminal itself, in the kernel's buffer without an echo;
    Ctrl-C still interrupts. Yields a context that lends the terminal to other programs.

    Does nothing if stdin is not a terminal.
    """
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        yield nullcontext
        return
    terminal = sys.stdin.fileno()
    found = settings_of(terminal)
    assert found is not None
    holding, is_lent = held(terminal), False

    def hold_again() -> None:
        if not is_lent and is_in_foreground(terminal):
            apply(terminal, holding)

    @contextmanager
    def lend() -> Iterator[None]:
        nonlocal is_lent
        is_lent = True
        try:
            with set_to(terminal, found):
                yield
        finally:
            is_lent = False

    with set_to(terminal, holding), when_continued(hold_again):
        yield lend
