"""Ctrl-C and SIGTERM: a request to end well, the second one an order to end at once."""

import signal
from types import FrameType
from typing import NoReturn

from mlxchat.errors import ExitStatus

STATUS_OF_SIGNAL = {
    signal.SIGINT: ExitStatus.INTERRUPTED,
    signal.SIGTERM: ExitStatus.TERMINATED,
}


class Terminated(BaseException):
    """SIGTERM while there was nothing yet to end well."""


def terminate_by_exception() -> None:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that locks and part-files are cleaned up."""
    signal.signal(signal.SIGTERM, _raise_terminated)


def _raise_terminated(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


class StopRequest:
    """While the body runs, a first signal only sets `status`; a second one interrupts."""

    def __init__(self) -> None:
        self.status: ExitStatus | None = None
        self._previous: dict[int, object] = {}

    def requested(self) -> bool:
        return self.status is not None

    def __enter__(self) -> "StopRequest":
        for number in STATUS_OF_SIGNAL:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        if self.status is not None:
            raise KeyboardInterrupt
        self.status = STATUS_OF_SIGNAL[signal.Signals(signal_number)]
