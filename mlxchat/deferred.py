"""Signals that wait until something is whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let the signals that end a program come after the body, as if they had come then.

    A signal that nothing handles still ends the program at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))

    handlers = {number: signal.getsignal(number) for number in ENDING}
    held: dict[int, Any] = {n: handler for n, handler in handlers.items() if callable(handler)}
    try:
        for number in held:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for number, frame in came:
            # Called, not raised again: the signal watch would count two.
            held[number](number, frame)
