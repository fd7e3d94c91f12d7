"""Progress on stderr of what turns out to be long, and what else `app` reports and asks."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mlxchat.app.observer import Observer
from mlxchat.terminal import is_dumb, visible
from mlxchat.terminal.leaving import say_on_own_line, stopped_at_the_end
from mlxchat.terminal.messages import Messages
from mlxchat.units import Progress

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
    line = Late(text)
    with stopped_at_the_end(line.stop):
        line.begin(PATIENCE_S)
        yield


def is_drawn(quiet: bool) -> bool:
    return not quiet and sys.stderr is not None and sys.stderr.isatty()


class Late:
    """A line that appears some time after `begin` unless stopped first. A separate thread draws it,
    because the caller may be busy in MLX for minutes."""

    def __init__(self, text: str = "") -> None:
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._shown: Any = None
        self.change(text)

    def change(
        self, text: str, *, done: int = 0, total: int | None = None, plain: str = ""
    ) -> None:
        """Change the text; `plain` is what a terminal without cursor movement gets."""
        with self._lock:
            self._text, self._plain = visible(text), visible(plain or text)
            self._done, self._total = done, total
            if self._shown is not None:
                self._shown.update(0, total=total, completed=done, description=self._text)

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

    def _show(self) -> None:
        with self._lock:
            if self._timer is None:
                return
            if is_dumb():
                sys.stderr.write(f"{self._plain}\n")
                sys.stderr.flush()
                return
            from mlxchat.terminal.moving import moving_line

            self._shown = moving_line(self._text, self._total)
            self._shown.update(0, completed=self._done)
            self._shown.start()

    def say(self, text: str) -> bool:
        """Write a line above it; return False if it is not shown."""
        with self._lock:
            if self._shown is None:
                return False
            self._shown.console.print(text, markup=False, highlight=False)
            return True

    def say_anyway(self, text: str) -> None:
        """Write a line above it, or on a separate line."""
        if not self.say(text):
            say_on_own_line(text)


class Bar(Late):
    """Appears `patience_s` after the first call, or never if that is None. Shows the count in
    `unit`s, their rate and the time left. Once stopped, a later call starts it again."""

    def __init__(self, what: str, unit: str, patience_s: float | None) -> None:
        super().__init__()
        self._what, self._unit = what, unit
        self._patience_s = patience_s
        self._begun_s, self._done_before = 0.0, 0

    def __call__(self, done: int, total: int | None, speed: str = "") -> None:
        """Show that `done` of `total` are done, and the `speed` instead of the rate. The bar
        disappears with the last one, because the caller may write to the terminal next."""
        if self._patience_s is None:
            return
        with self._lock:
            if self._timer is None and (total is None or done < total):
                self._begun_s, self._done_before = time.monotonic(), done
                self.begin(self._patience_s)
            plain = f"{self._what} {'' if total is None else f'{total:,} '}{self._unit} …"
            text = self._figures(done, total, speed)
            self.change(text, done=done, total=total, plain=plain)
        if total is not None and done >= total:
            self.stop()

    def counting(self, what: str, unit: str) -> Progress:
        """A callable like the bar itself, for another operation before or after."""

        def count(done: int, total: int) -> None:
            if (self._what, self._unit) != (what, unit):
                self.stop()
                self._what, self._unit = what, unit
            self(done, total)

        return count

    def _figures(self, done: int, total: int | None, speed: str) -> str:
        figures = f"{self._what} {done:,}{'' if total is None else f'/{total:,}'} {self._unit}"
        seconds, counted = time.monotonic() - self._begun_s, done - self._done_before
        if not counted or not seconds:
            return figures
        rate = counted / seconds
        figures += f" · {speed or f'{rate:,.{0 if rate >= 10 else 1}f} {self._unit}/s'}"
        return figures if total is None else f"{figures} · {_duration((total - done) / rate)} left"


def _duration(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def observer_of(messages: Messages) -> Observer:
    """Shows on the terminal what `app` reports."""
    return Observer(
        warn=messages.warn,
        note=messages.note,
        ask=terminal_question(),
        show_progress=not messages.quiet,
        waiting=lambda text: waiting(text, messages.quiet),
        counting=lambda what, unit: progress(what, unit, messages.quiet),
    )


def terminal_question() -> Callable[[str], bool] | None:
    """Return a function that asks on the terminal; None if stdin or stderr is not a terminal."""
    if sys.stdin is None or sys.stderr is None:
        return None
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return _ask


def _ask(question: str) -> bool:
    sys.stderr.write(f"{visible(question)} [Y/n] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    # End of input does not count as consent.
    return answer.strip().lower() in ("y", "yes") or answer == "\n"
