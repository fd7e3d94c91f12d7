"""The progress of a benchmark, on stderr if that is a terminal. Drawn between runs only, so that
drawing does not affect the measurements."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class BenchProgress:
    """`tick` may be called at any time; it draws only while the body of `of` runs."""

    def __init__(self, quiet: bool) -> None:
        self._is_shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        if not self._is_shown:
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self._bar = Progress(
            TextColumn("bench {task.fields[bench]}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total}", markup=False),
            TimeElapsedColumn(),
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis"),
            ),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("getting ready", total=1, bench=name)
        try:
            with self._bar:
                self._bar.refresh()
                yield
        finally:
            self._bar = None

    def tick(self, done: int, total: int, what: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=what)
            self._bar.refresh()
