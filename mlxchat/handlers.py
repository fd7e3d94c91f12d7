"""Signals while something runs that must not be disturbed, or handles them itself."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
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


@contextmanager
def handled_by(
    handler: Callable[[int, FrameType | None], object], numbers: Iterable[int]
) -> Iterator[None]:
    """Have `handler`, and no signal watch, handle these signals while the body runs. For the main
    thread."""
    before = {number: signal.signal(number, handler) for number in numbers}
    watched = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(watched, warn_on_full_buffer=False)
        for number, previous in before.items():
            signal.signal(number, previous)
