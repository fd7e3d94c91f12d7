"""How the program leaves: with the terminal restored, in any state and from any thread, and with
the status of the signal that ended it."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from mlxchat.errors import ExitStatus
from mlxchat.terminal import is_dumb
from mlxchat.terminal.modes import apply, settings_of

STATUS_OF_SIGNAL = {
    signal.SIGINT: ExitStatus.INTERRUPTED,
    signal.SIGTERM: ExitStatus.TERMINATED,
    signal.SIGHUP: ExitStatus.HUNG_UP,
}

# How long the main thread waits for anything: the system may hand a signal to another thread.
TICK_S = 0.05
# Final actions must not take longer, even if the reader is gone or a disk hangs.
LAST_WORDS_S = 0.5


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


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived when there was nothing to end gracefully."""

    def __init__(self, status: ExitStatus) -> None:
        super().__init__(status)
        self.status = status


def ending_by(number: int) -> BaseException:
    """What to raise to end the program with the status of the signal."""
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    return Terminated(STATUS_OF_SIGNAL[signal.Signals(number)])


def leave(
    status: ExitStatus,
    restore: Callable[[], None],
    before_leaving: Callable[[], object] = lambda: None,
) -> NoReturn:
    """End the process at once, after the last words, with the terminal restored."""

    def speak() -> None:
        # Errors can no longer be reported.
        with suppress(Exception):
            before_leaving()
        restore()

    words = threading.Thread(target=speak, daemon=True)
    words.start()
    words.join(LAST_WORDS_S)
    os._exit(status)


def leave_on_signals() -> None:
    """From now on, let Ctrl-C, SIGTERM and SIGHUP end the process at once: outside a worker,
    everything is saved by a system call."""
    restore = restorer()
    for number, status in STATUS_OF_SIGNAL.items():
        if not is_ignored(number):
            signal.signal(number, lambda *_, status=status: leave(status, restore))


@contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """While the body runs, Ctrl-C is for another program: unlike SIG_IGN, a handler is not
    inherited by it. Main thread only."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def ignore_signals() -> None:
    """From now on, leave the end of this process to others."""
    for number in STATUS_OF_SIGNAL:
        signal.signal(number, signal.SIG_IGN)


def is_ignored(number: int) -> bool:
    """Whether the parent process wants it ignored, as `nohup` does with SIGHUP."""
    return signal.getsignal(number) is signal.SIG_IGN
