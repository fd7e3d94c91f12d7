"""Signal handling around code that must not be interrupted, or that handles signals itself."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Defer the signals that end a program until the body is done.

    A signal without a Python handler still ends the program immediately.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        pending.append((number, frame))

    handlers = {number: signal.getsignal(number) for number in ENDING}
    held: dict[int, Any] = {n: handler for n, handler in handlers.items() if callable(handler)}
    try:
        for number in held:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for number, frame in pending:
            # Called rather than raised again, or the signal watch would count it twice.
            held[number](number, frame)


@contextmanager
def handled_by(
    handler: Callable[[int, FrameType | None], object], numbers: Iterable[int]
) -> Iterator[None]:
    """Let `handler` alone, not the signal watch, handle these signals. Main thread only."""
    before = {number: signal.signal(number, handler) for number in numbers}
    watched = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(watched, warn_on_full_buffer=False)
        for number, previous in before.items():
            signal.signal(number, previous)
