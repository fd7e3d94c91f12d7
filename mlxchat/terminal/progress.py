"""Progress on stderr of what turns out to be long, and what else `app` reports and asks."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from mlxchat.terminal import is_dumb, visible
from mlxchat.terminal.output import MARGIN, Messages, TerminalLine, wrap
from mlxchat.units import Observer, Progress

PATIENCE_S = 0.3


class Line:
    """A line on stderr, which appears if it is not removed within a moment. Nothing is drawn if
    `quiet`, or without a terminal that can move its cursor. If `is_animated`, a separate thread
    draws it, because the caller may be busy in MLX for minutes."""

    def __init__(self, quiet: bool, *, is_animated: bool = True) -> None:
        self._is_drawn, self._is_animated = is_drawn(quiet), is_animated
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._shown: Any = None

    def show(self, text: str, done: int = 0, total: int | None = None) -> None:
        """Show the text, and a bar if there is a total."""
        if not self._is_drawn:
            return
        with self._lock:
            self._text, self._done, self._total = visible(text), done, total
            if self._shown is not None:
                self._shown.update(0, total=total, completed=done, description=self._fitted())
                if not self._is_animated:
                    self._shown.refresh()
            elif self._timer is None:
                self._timer = threading.Timer(PATIENCE_S, self._appear)
                self._timer.daemon = True
                self._timer.start()

    def stop(self) -> bool:
        """Remove it; return whether it was shown. Callable from any thread."""
        with self._lock:
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()
            shown, self._shown = self._shown, None
            if shown is not None:
                # Another thread that removes it waits here until it is gone.
                shown.stop()
            return shown is not None

    def _appear(self) -> None:
        with self._lock:
            # It would erase text that has no line end yet, such as the beginning of an answer.
            if self._timer is None or TerminalLine.is_open:
                return
            # Importing rich often takes longer than the operation.
            from mlxchat.terminal.screen import moving_line

            self._shown = moving_line(self._text, self._total, is_animated=self._is_animated)
            self._shown.update(0, completed=self._done, description=self._fitted())
            if (console := self._shown.console).is_terminal:
                # To the next row, if a script has written the beginning of this one.
                print(" " * console.width, end="\r", file=sys.stderr)
            self._shown.start()

    def _fitted(self) -> str:
        """The text without the last figures if they have no room."""
        text, room = self._text, self._shown.console.width - MARGIN - 2
        while len(text) > room and " · " in text:
            text = text.rpartition(" · ")[0]
        # Nor the unit.
        return text.rpartition(" ")[0] if len(text) > room and self._done else text


class Count:
    """Called with how many of how many are done, the speed if that is not their rate, and whether
    the rate `lasts`. The line disappears with the last one: the caller may write next."""

    def __init__(self, line: Line, what: str, unit: str) -> None:
        self._line, self._what, self._unit = line, what, unit
        self._begun_s, self._begun_at, self._done = 0.0, 0, float("inf")

    def __call__(self, done: int, total: int | None, speed: str = "", lasts: bool = True) -> None:
        if done < self._done:
            self._begun_s, self._begun_at = time.monotonic(), done
        self._done = done
        if total is not None and done >= total:
            self._line.stop()
        else:
            self._line.show(self._figures(done, total, speed, lasts), done, total)

    def _figures(self, done: int, total: int | None, speed: str, lasts: bool) -> str:
        number = f"{done:,}" if total is None else f"{done:,}/{total:,}"
        figures = f"{self._what} {number} {self._unit[: -1 if number == '1' else None]}"
        seconds, counted = time.monotonic() - self._begun_s, done - self._begun_at
        if not counted or not seconds:
            return f"{figures} · {speed}" if speed else figures
        rate = counted / seconds
        figures += f" · {_duration((total - done) / rate)} left" if total and lasts else ""
        return f"{figures} · {speed or f'{rate:,.{0 if rate >= 10 else 1}f} {self._unit}/s'}"


def _duration(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def is_drawn(quiet: bool) -> bool:
    return not (quiet or is_dumb()) and sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def progress(quiet: bool, *, is_animated: bool = True) -> Iterator[Line]:
    """Yield a line, which is gone when the body ends."""
    line = Line(quiet, is_animated=is_animated)
    TerminalLine.drawn.append(line.stop)
    try:
        yield line
    finally:
        TerminalLine.drawn.remove(line.stop)
        line.stop()


@contextmanager
def waiting(text: str, quiet: bool) -> Iterator[None]:
    """Show the text while the body runs."""
    with progress(quiet) as line:
        line.show(text)
        yield


@contextmanager
def counting(what: str, unit: str, quiet: bool) -> Iterator[Progress]:
    """Yield what counts while the body runs."""
    with progress(quiet) as line:
        yield Count(line, what, unit)


def observer_of(messages: Messages) -> Observer:
    """Shows on the terminal what `app` reports."""
    quiet = messages.quiet
    return Observer(
        warn=messages.warn,
        note=messages.note,
        ask=terminal_question(),
        show_progress=not quiet,
        waiting=lambda text: waiting(text, quiet),
        counting=lambda what, unit: counting(what, unit, quiet),
    )


def terminal_question(choice: str = "[Y/n]") -> Callable[[str], bool] | None:
    """A function that asks, Enter being the capital; None if stdin or stderr is no terminal."""
    has_both = all(each is not None and each.isatty() for each in (sys.stdin, sys.stderr))
    return partial(_ask, choice) if has_both else None


def _ask(choice: str, question: str) -> bool:
    columns = shutil.get_terminal_size().columns - MARGIN
    asked = wrap(f"{visible(question)} {choice}", max(columns, 1))
    print(asked, end=" ", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    # The end of the input, which is not echoed, does not count as consent.
    sys.stderr.write("" if answer else "\n")
    return answer.strip().lower() in ("y", "yes") or (answer == "\n" and "Y" in choice)
