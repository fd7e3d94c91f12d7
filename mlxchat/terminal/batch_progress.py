"""The progress of a batch on stderr: rows, tokens per second, and the time left."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from mlxchat.app.batch_run import Figures
from mlxchat.terminal.progress import PATIENCE_S, Late, duration, is_drawn
from mlxchat.terminal.restore import stopped_at_the_end
from mlxchat.units import count

# Redrawing for each token would take longer than generating it.
REDRAWN_S = 0.1

# The time left depends on the rows of this time: later ones may be longer.
LATEST_S = 60.0


@contextmanager
def batch_progress(quiet: bool) -> Iterator["BatchBar"]:
    """Yield a bar, to be called with the figures. Nothing is drawn if `quiet` or if stderr is not a
    terminal."""
    bar = BatchBar(is_shown=is_drawn(quiet))
    with stopped_at_the_end(bar.stop):
        yield bar


class BatchBar(Late):
    """Appears shortly after the first call, and stays until it is stopped."""

    def __init__(self, *, is_shown: bool) -> None:
        super().__init__()
        self._is_shown = is_shown
        self._latest: deque[tuple[float, int]] = deque()
        self._drawn_s = 0.0

    def __call__(self, figures: Figures) -> None:
        now_s = time.monotonic()
        if not self._is_shown or now_s - self._drawn_s < REDRAWN_S:
            return
        self._drawn_s = now_s
        with self._lock:
            self._latest.append((now_s, _run(figures)))
            while now_s - self._latest[0][0] > LATEST_S:
                self._latest.popleft()
            if self._timer is None:
                self.begin(PATIENCE_S)
            rate, rows = figures.tokens_per_s, _rows(figures)
            speed = f"{rate:,.{0 if rate >= 10 else 1}f} tok/s" if rate else ""
            parts = [rows, speed, self._left(figures)]
            self.change(
                " · ".join(filter(None, parts)),
                done=figures.rows.done,
                total=figures.total,
                plain=f"running {rows} …",
            )

    def _left(self, figures: Figures) -> str:
        (first_s, first), (last_s, last) = self._latest[0], self._latest[-1]
        if figures.total is None or last <= first:
            return ""
        left_s = (figures.total - figures.rows.done) * (last_s - first_s) / (last - first)
        return f"{duration(max(left_s, 0))} left"


def _run(figures: Figures) -> int:
    """The rows that took time: not those that were only read."""
    rows = figures.rows
    return rows.finished + rows.failed - rows.malformed


def _rows(figures: Figures) -> str:
    if figures.total is None:
        return count(figures.rows.done, "row")
    return f"{figures.rows.done:,}/{figures.total:,} rows"
