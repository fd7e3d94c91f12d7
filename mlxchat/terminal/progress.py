"""A progress bar on stderr for operations that turn out to be long."""

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlxchat.progress import Progress
from mlxchat.terminal import is_dumb, visible
from mlxchat.terminal.restore import say_on_own_line, stopped_at_the_end

PATIENCE_S = 0.3


@contextmanager
def progress(what: str, unit: str, quiet: bool) -> Iterator["Bar"]:
    """Yield a bar, to be called with `(done, total)`. It disappears when everything is done or the
    body ends.

    Nothing is drawn if `quiet` or if stderr is not a terminal.
    """
    bar = Bar(what, unit, PATIENCE_S if is_drawn(quiet) else None)
    with stopped_at_the_end(bar.stop):
        yield bar


@contextmanager
def waiting(text: str, quiet: bool) -> Iterator[None]:
    """An animated line on stderr while the body runs, if that takes more than a moment. A terminal
    without cursor movement gets a plain line.

    Nothing is drawn if `quiet` or if stderr is not a terminal.
    """
    if not is_drawn(quiet):
        yield
        return
    spinner = _Spinner(text)
    with stopped_at_the_end(spinner.stop):
        spinner.begin(PATIENCE_S)
        yield


def is_drawn(quiet: bool) -> bool:
    return not quiet and sys.stderr is not None and sys.stderr.isatty()


class Late(ABC):
    """Appears some time after `begin` unless stopped first. A separate thread draws it, because the
    caller may be busy in MLX for minutes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._shown: Any = None

    def begin(self, patience_s: float) -> None:
        self._timer = threading.Timer(patience_s, self._show)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """Remove it; callable from any thread."""
        with self._lock:
            timer, self._timer = self._timer, None
            shown, self._shown = self._shown, None
        if timer is not None:
            timer.cancel()
        if shown is not None:
            shown.stop()

    @abstractmethod
    def _plain_line(self) -> str:
        """What a terminal without cursor movement shows."""

    @abstractmethod
    def _draw(self) -> Any:
        """The animation, with `start` and `stop`."""

    def _show(self) -> None:
        with self._lock:
            if self._timer is None:
                return
            if is_dumb():
                sys.stderr.write(f"{self._plain_line()}\n")
                sys.stderr.flush()
                return
            self._shown = self._draw()
            self._shown.start()


class _Spinner(Late):
    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = visible(text)

    def _plain_line(self) -> str:
        return self._text

    def _draw(self) -> Any:
        from mlxchat.terminal.moving import moving_line

        return moving_line(self._text)


class Bar(Late):
    """Appears `patience_s` after the first call, or never if that is None. Shows the count in
    `unit`s, their rate and the time left. Once stopped, a later call starts it again."""

    def __init__(self, what: str, unit: str, patience_s: float | None = PATIENCE_S) -> None:
        super().__init__()
        self._what, self._unit = what, unit
        self._patience_s = patience_s
        self._task: Any = None
        self._done = self._total = 0
        self._begun_s = self._updated_s = 0.0

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done. The bar disappears with the last one, because the
        caller may write to the terminal next."""
        if self._patience_s is None:
            return
        with self._lock:
            self._done, self._total, self._updated_s = done, total, time.monotonic()
            if self._shown is not None:
                self._update()
            elif self._timer is None and done < total:
                self._begun_s = self._updated_s
                self.begin(self._patience_s)
        if done >= total:
            self.stop()

    def counting(self, what: str, unit: str) -> Progress:
        """A callable like the bar itself, for another operation before or after."""

        def count(done: int, total: int) -> None:
            if (self._what, self._unit) != (what, unit):
                self.stop()
                self._what, self._unit = what, unit
            self(done, total)

        return count

    def say(self, text: str) -> bool:
        """Write a line above the bar; return False if no bar is shown."""
        with self._lock:
            if self._shown is None:
                return False
            self._shown.console.print(text, markup=False, highlight=False)
            return True

    def say_anyway(self, text: str) -> None:
        """Write a line above the bar, or on a separate line."""
        if not self.say(text):
            say_on_own_line(text)

    def _plain_line(self) -> str:
        return f"{self._what} {self._total:,} {self._unit} …"

    def _draw(self) -> Any:
        from mlxchat.terminal.moving import MovingBar

        self._shown = MovingBar()
        self._task = self._shown.add_task(self._what, total=self._total, count="", rate="", left="")
        self._update()
        return self._shown

    def _update(self) -> None:
        elapsed_s = self._updated_s - self._begun_s
        rate = self._done / elapsed_s if elapsed_s > 0 else 0.0
        count = f"{self._done:,}/{self._total:,} {self._unit}"
        figures = {"count": count, "rate": "", "left": ""}
        if rate:
            left_s = (self._total - self._done) / rate
            figures |= {"rate": _rate(rate, self._unit), "left": f"{duration(left_s)} left"}
        self._shown.update(self._task, total=self._total, completed=self._done, **figures)


def _rate(per_s: float, unit: str) -> str:
    return f"{per_s:,.0f} {unit}/s" if per_s >= 10 else f"{per_s:.1f} {unit}/s"


def duration(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
