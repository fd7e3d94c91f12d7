"""Handles signals while the main thread is busy in MLX, possibly for minutes.

Python runs signal handlers in the main thread, between two bytecode instructions: none runs
inside `mx.eval`. But the interpreter immediately writes each signal to a pipe, and a thread that
reads it can print a message or end the process.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from mlxchat.errors import ExitStatus
from mlxchat.terminal.modes import put_right
from mlxchat.terminal.restore import restorer

STATUS_OF_SIGNAL = {
    signal.SIGINT: ExitStatus.INTERRUPTED,
    signal.SIGTERM: ExitStatus.TERMINATED,
    signal.SIGHUP: ExitStatus.HUNG_UP,
}

# Code that reacts within this time needs neither a message nor force.
REACTION_S = 0.3

# SIGTERM and SIGHUP end the process within five seconds, whatever it is doing.
END_AFTER_S = 4.0

# Final actions must not take longer, even if the reader is gone or a disk hangs.
LAST_WORDS_S = 0.5


class Pending:
    """Signals that the main thread has not handled yet, and when to act on them."""

    def __init__(self) -> None:
        self._came: list[tuple[ExitStatus, float]] = []
        self.said = False

    def came(self, status: ExitStatus, now_s: float) -> None:
        self._came.append((status, now_s))

    def acted(self) -> None:
        """The main thread has handled all of them."""
        self._came.clear()
        self.said = False

    @property
    def status(self) -> ExitStatus:
        """The exit status, which the last signal decides."""
        return self._came[-1][0]

    def say_at_s(self) -> float | None:
        """When to announce the stop: once, shortly after a single Ctrl-C."""
        if len(self._came) != 1 or self.said or self.status is not ExitStatus.INTERRUPTED:
            return None
        return self._came[0][1] + REACTION_S

    def leave_at_s(self) -> float | None:
        """When to end the process: shortly after a second signal, immediately if the stop was
        announced."""
        if len(self._came) > 1:
            return self._came[1][1] + (0.0 if self.said else REACTION_S)
        if self._came and self.status is not ExitStatus.INTERRUPTED:
            return self._came[0][1] + END_AFTER_S
        return None


class SignalWatch:
    """From `begin` to `end`, calls `say` and `leave` from its own thread when they are due.

    `leave` gets the exit status and must end the process; anything that takes `lock` meanwhile
    waits. Call `begin` and `end` in the main thread.
    """

    def __init__(self, say: Callable[[], object], leave: Callable[[ExitStatus], object]) -> None:
        self._say, self._leave = say, leave
        # A handler may run while the main thread holds it.
        self.lock = threading.RLock()
        self._pending = Pending()
        self._reader = self._writer = self._previous = -1
        self._retired = False

    @property
    def has_said(self) -> bool:
        return self._pending.said

    def begin(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._previous = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._run, name="signals", daemon=True).start()

    def end(self) -> None:
        signal.set_wakeup_fd(self._previous, warn_on_full_buffer=False)
        with self.lock:
            self._pending.acted()
            # The thread reads the end of the pipe, and ends.
            os.close(self._writer)

    def acted(self) -> None:
        """The main thread has handled all signals so far: nothing is due."""
        with self.lock:
            # The thread may not have read it yet.
            self._read()
            self._pending.acted()

    def retire(self) -> None:
        """As `acted`; later signals may take their time as well."""
        with self.lock:
            self._retired = True
            self.acted()

    def _run(self) -> None:
        while True:
            select.select([self._reader], [], [], self._wait_s())
            with self.lock:
                if not self._read():
                    os.close(self._reader)
                    return
                self._do_what_is_due()

    def _wait_s(self) -> float | None:
        with self.lock:
            due = [self._pending.say_at_s(), self._pending.leave_at_s()]
        at_s = min((each for each in due if each is not None), default=None)
        return None if at_s is None else max(at_s - time.monotonic(), 0.0)

    def _read(self) -> bool:
        """Read the pipe; return False at its end."""
        try:
            numbers = os.read(self._reader, 64)
        except BlockingIOError:
            return True
        if signal.SIGCONT in numbers:
            put_right()
        for number in numbers:
            if number in STATUS_OF_SIGNAL:
                self._pending.came(STATUS_OF_SIGNAL[signal.Signals(number)], time.monotonic())
        return bool(numbers)

    def _do_what_is_due(self) -> None:
        if self._retired:
            self._pending.acted()
        now_s = time.monotonic()
        leave_at_s, say_at_s = self._pending.leave_at_s(), self._pending.say_at_s()
        if leave_at_s is not None and now_s >= leave_at_s:
            self._leave(self._pending.status)
        elif say_at_s is not None and now_s >= say_at_s:
            self._pending.said = True
            self._say()


def make_leave(
    last_words: Callable[[], None], restore: Callable[[], None] | None = None
) -> Callable[[ExitStatus], None]:
    """Return a function that runs `last_words` and ends the process immediately, whatever the main
    thread is doing. Before that it calls `restore`; without one the terminal is left as it is now.
    """
    restore = restore or restorer()

    def leave(status: ExitStatus) -> None:
        def speak() -> None:
            # Errors can no longer be reported.
            with suppress(Exception):
                last_words()
            restore()

        words = threading.Thread(target=speak, daemon=True)
        words.start()
        words.join(LAST_WORDS_S)
        os._exit(status)

    return leave
