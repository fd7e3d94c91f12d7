"""Ctrl-C, SIGTERM, SIGHUP: a request to end well, the second one an order to end at once."""

import signal
from types import FrameType
from typing import NoReturn

from mlxchat.errors import ExitStatus

STATUS_OF_SIGNAL = {
    signal.SIGINT: ExitStatus.INTERRUPTED,
    signal.SIGTERM: ExitStatus.TERMINATED,
    signal.SIGHUP: ExitStatus.HUNG_UP,
}

# What asks a program how it goes: Ctrl-T on a Mac, `kill -USR1` anywhere.
STATUS_SIGNALS = {signal.SIGUSR1, getattr(signal, "SIGINFO", signal.SIGUSR1)}


class Terminated(BaseException):
    """A signal to end while there was nothing yet to end well."""

    def __init__(self, status: ExitStatus) -> None:
        super().__init__(status)
        self.status = status


def terminate_by_exception() -> None:
    """Let SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that what is open is closed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if not _is_ignored(number):
            signal.signal(number, _raise_terminated)


def _raise_terminated(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(STATUS_OF_SIGNAL[signal.Signals(signal_number)])


def _is_ignored(number: int) -> bool:
    """Whether whoever started us wants it so, as `nohup` does with SIGHUP."""
    return signal.getsignal(number) is signal.SIG_IGN


class StatusRequest:
    """While the body runs, a signal that asks how it goes sets `asked`."""

    def __init__(self) -> None:
        self.asked = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StatusRequest":
        for number in STATUS_SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        self.asked = True


class StopRequest:
    """While the body runs, a first signal only sets `status`; a second one interrupts."""

    def __init__(self) -> None:
        self.status: ExitStatus | None = None
        self._previous: dict[int, object] = {}

    def requested(self) -> bool:
        return self.status is not None

    def __enter__(self) -> "StopRequest":
        for number in STATUS_OF_SIGNAL:
            if not _is_ignored(number):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        if self.status is not None:
            raise KeyboardInterrupt
        self.status = STATUS_OF_SIGNAL[signal.Signals(signal_number)]
