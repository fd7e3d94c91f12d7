"""Ctrl-C, SIGTERM and SIGHUP: the first ends a reply gracefully, the second ends the process.

Python runs signal handlers in the main thread, between two bytecode instructions: none runs
inside `mx.eval`, which may take minutes. But the interpreter immediately writes each signal to a
pipe, and a thread that reads it can print a message or end the process.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from mlxchat.errors import ExitStatus
from mlxchat.terminal.modes import put_right
from mlxchat.terminal.restore import restorer, say_on_own_line

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

WILL_STOP = "mlxchat: stopping after this step; press Ctrl-C again to quit now"

# How often a signal during an import is sent again.
RETRY_S = 0.02

# Signals that ask for progress: Ctrl-T on a Mac, `kill -USR1` anywhere.
STATUS_SIGNALS = {signal.SIGUSR1, getattr(signal, "SIGINFO", signal.SIGUSR1)}


class PendingSignals:
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
        self._pending = PendingSignals()
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


_last_words: list[Callable[[], object]] = []


@contextmanager
def before_leaving(act: Callable[[], object]) -> Iterator[None]:
    """If the process is ended immediately while the body runs, call `act` in another thread. It has
    a fraction of a second, and the body may have stopped anywhere."""
    _last_words.append(act)
    try:
        yield
    finally:
        _last_words.remove(act)


def make_leave(restore: Callable[[], None] | None = None) -> Callable[[ExitStatus], None]:
    """Return a function that ends the process immediately, whatever the main thread is doing.
    Before that it calls `restore`; without one the terminal is left as it is now."""
    restore = restore or restorer()

    def leave(status: ExitStatus) -> None:
        def speak() -> None:
            # Errors can no longer be reported.
            with suppress(Exception):
                for act in _last_words:
                    act()
            restore()

        words = threading.Thread(target=speak, daemon=True)
        words.start()
        words.join(LAST_WORDS_S)
        os._exit(status)

    return leave


class Terminated(BaseException):
    """A signal arrived when there was nothing to end gracefully."""

    def __init__(self, status: ExitStatus) -> None:
        super().__init__(status)
        self.status = status


def terminate_by_exception() -> None:
    """From now on, let Ctrl-C, SIGTERM and SIGHUP unwind the stack, so that open files are closed.
    If the main thread is too busy, `SignalWatch` acts instead."""
    watch = SignalWatch(lambda: say_on_own_line(WILL_STOP), make_leave())

    def end(signal_number: int, frame: FrameType | None) -> None:
        watch.acted()
        if _is_importing(frame):
            again = threading.Timer(RETRY_S, os.kill, (os.getpid(), signal_number))
            again.daemon = True
            again.start()
            return
        if signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated(STATUS_OF_SIGNAL[signal.Signals(signal_number)])

    watch.begin()
    for number in STATUS_OF_SIGNAL:
        if not _is_ignored(number):
            signal.signal(number, end)


def end_immediately() -> None:
    """From now on, let these signals end the process, as nothing is left to unwind."""
    for number in STATUS_OF_SIGNAL:
        if not _is_ignored(number):
            signal.signal(number, signal.SIG_DFL)


def ignore_signals() -> None:
    """From now on, leave the end of this process to others."""
    for number in STATUS_OF_SIGNAL:
        signal.signal(number, signal.SIG_IGN)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether an exception might be lost, or become an ImportError."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _is_ignored(number: int) -> bool:
    """Whether the parent process wants it ignored, as `nohup` does with SIGHUP."""
    return signal.getsignal(number) is signal.SIG_IGN


class StatusRequest:
    """While the body runs, a status signal sets `asked`."""

    def __init__(self) -> None:
        self.asked = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StatusRequest":
        for number in STATUS_SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def take(self) -> bool:
        """Whether it was asked since the last call."""
        asked, self.asked = self.asked, False
        return asked

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        self.asked = True


class StopRequest:
    """While the body runs, the first signal only sets `status`; a second one interrupts.

    If the body does not react, because a step of MLX takes long, a first Ctrl-C prints a notice
    with `say`; a second one ends the process immediately, as SIGTERM and SIGHUP do within five
    seconds. Everything important must be saved by then, or by `before_leaving`. The terminal is
    then restored by `restore`, or left as it was at the beginning.
    """

    def __init__(self, restore: Callable[[], None] | None = None) -> None:
        self._restore = restore
        self.status: ExitStatus | None = None
        self.say: Callable[[str], object] = say_on_own_line
        self._previous: dict[int, object] = {}
        self._watch: SignalWatch | None = None

    def requested(self) -> bool:
        # Blocks forever if the process is being ended.
        if self._watch is not None:
            with self._watch.lock:
                pass
        return self.status is not None

    def obeyed(self) -> None:
        """The loop that had to stop has ended; what follows may take its time."""
        assert self._watch is not None
        self._watch.retire()

    def __enter__(self) -> "StopRequest":
        self._watch = SignalWatch(lambda: self.say(WILL_STOP), make_leave(self._restore))
        self._watch.begin()
        for number in STATUS_OF_SIGNAL:
            if not _is_ignored(number):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        assert self._watch is not None
        self._watch.end()

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        assert self._watch is not None
        if self.status is None:
            self.status = STATUS_OF_SIGNAL[signal.Signals(signal_number)]
        elif not self._watch.has_said:
            self._watch.acted()
            raise KeyboardInterrupt
