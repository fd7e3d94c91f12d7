"""What has to be put right when the program continues after Ctrl-Z and `fg`.

The shell had the terminal meanwhile. Stopping itself is left to the system: its default stops every
thread at once, and does nothing if no shell could continue the program.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_acts: list[Callable[[], object]] = []


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
