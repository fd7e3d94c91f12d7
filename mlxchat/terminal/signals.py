"""Ctrl-C, SIGTERM and SIGHUP: the first ends a reply gracefully, the second ends the process."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from mlxchat.errors import ExitStatus
from mlxchat.terminal.restore import say_on_own_line
from mlxchat.terminal.signal_watch import STATUS_OF_SIGNAL, SignalWatch, make_leave

WILL_STOP = "mlxchat: stopping after this step; press Ctrl-C again to quit now"

# How often a signal during an import is sent again.
RETRY_S = 0.02

# Signals that ask for progress: Ctrl-T on a Mac, `kill -USR1` anywhere.
STATUS_SIGNALS = {signal.SIGUSR1, getattr(signal, "SIGINFO", signal.SIGUSR1)}


class Terminated(BaseException):
    """A signal arrived when there was nothing to end gracefully."""

    def __init__(self, status: ExitStatus) -> None:
        super().__init__(status)
        self.status = status


def terminate_by_exception() -> None:
    """From now on, let Ctrl-C, SIGTERM and SIGHUP unwind the stack, so that open files are closed.
    If the main thread is too busy, `SignalWatch` acts instead."""
    watch = SignalWatch(lambda: say_on_own_line(WILL_STOP), make_leave(lambda: None))

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
    seconds. Everything important must be saved by then; callbacks of `before_leaving` run first.
    The terminal is then restored by `restore`, or left as it was at the beginning.
    """

    def __init__(self, restore: Callable[[], None] | None = None) -> None:
        self._restore = restore
        self.status: ExitStatus | None = None
        self.say: Callable[[str], object] = say_on_own_line
        self._last_words: list[Callable[[], object]] = []
        self._previous: dict[int, object] = {}
        self._watch: SignalWatch | None = None

    def requested(self) -> bool:
        # Blocks forever if the process is being ended.
        if self._watch is not None:
            with self._watch.lock:
                pass
        return self.status is not None

    def before_leaving(self, act: Callable[[], object]) -> None:
        """Call `act` in another thread if the process is ended from here. It has a fraction of a
        second, and the body may have stopped anywhere."""
        self._last_words.append(act)

    def obeyed(self) -> bool:
        """The loop that had to stop has ended; what follows may take its time. Returns whether the
        stop was announced."""
        assert self._watch is not None
        has_said = self._watch.has_said
        self._watch.retire()
        return has_said

    def __enter__(self) -> "StopRequest":
        self._watch = SignalWatch(
            lambda: self.say(WILL_STOP), make_leave(self._speak, self._restore)
        )
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

    def _speak(self) -> None:
        for act in self._last_words:
            act()
