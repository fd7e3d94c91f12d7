"""A progress bar on stderr for what turns out to take long, and nothing for what does not."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 0.5

Progress = Callable[[int, int], None]


@contextmanager
def progress(what: str, unit: str, quiet: bool) -> Iterator[Progress | None]:
    """Yield a callback for `(done, total)`, or None if `quiet` or stderr is no terminal.

    The bar appears once PATIENCE_S have passed, shows `unit`s, their rate and the time left, and
    is gone when all is done or the body ends.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(what, unit)
    try:
        yield bar.update
    finally:
        bar.stop()


class _Bar:
    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit = what, unit
        self._started_s = time.monotonic()
        self._shown = None
        self._task = None

    def update(self, done: int, total: int) -> None:
        elapsed_s = time.monotonic() - self._started_s
        if done >= total:
            # Whatever comes next may write to the terminal, and the bar would paint over it.
            self.stop()
            return
        if self._shown is None and elapsed_s < PATIENCE_S:
            return
        if self._shown is None:
            self._show(total)
        assert self._shown is not None
        assert self._task is not None
        rate = done / elapsed_s
        left_s = (total - done) / rate if rate else 0.0
        self._shown.update(
            self._task,
            completed=done,
            rate=f"{rate:,.0f} {self._unit}/s",
            left=f"{_duration(left_s)} left",
        )

    def stop(self) -> None:
        if self._shown is not None:
            self._shown.stop()
            self._shown = None

    def _show(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + self._unit),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._shown.add_task(self._what, total=total, rate="", left="")
        self._shown.start()


def _duration(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
