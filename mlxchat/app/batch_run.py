"""A batch from its input to its output: reads the rows, runs those without an answer, and writes
each result."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from mlxchat import platform
from mlxchat.app.answer import constraint_of
from mlxchat.app.observer import Observer
from mlxchat.app.opening import open_model
from mlxchat.app.prompt import count_pinned
from mlxchat.app.side_by_side import SideBySide
from mlxchat.engine.prefill import ShouldStop
from mlxchat.errors import UsageError
from mlxchat.request import BatchRequest
from mlxchat.rows.output import BatchFigures, Pending, Result, ResultFile
from mlxchat.rows.read import Rows

OnProgress = Callable[[BatchFigures], object]

# How many damaged lines of the output are named.
NAMED = 3


class BatchRun:
    """A batch whose input and output are open. The model is loaded when a row needs it."""

    def __init__(self, request: BatchRequest, pending: Pending, observer: Observer) -> None:
        self._request = request
        self._observer = observer
        self._pending = pending
        self.figures = pending.figures
        self.can_continue = request.output is not None

    def results(
        self,
        should_stop: ShouldStop = lambda: False,
        on_progress: OnProgress = lambda _: None,
    ) -> Iterator[Result]:
        """Run the rows until all are done or `should_stop` returns True. Yields the results that
        are not malformed rows, in the order in which they finish, once they are written. Raises
        MlxchatError."""
        figures, pending = self.figures, self._pending
        with self._observer.waiting("reading the input …"):
            has_more = pending.has_more(should_stop)
        if not has_more:
            return
        loaded = open_model(
            self._request.setup,
            self._observer,
            count_pinned=lambda tokenizer: count_pinned(self._request, tokenizer),
        )
        runner = SideBySide(self._request, loaded, pending, should_stop, self._observer.warn)
        began_s = time.perf_counter()
        on_progress(figures)
        for result in runner.results():
            if result is not None:
                pending.finish(result)
            figures.seconds = time.perf_counter() - began_s
            on_progress(figures)
            if result is not None:
                yield result


@contextmanager
def open_batch(
    request: BatchRequest,
    observer: Observer | None = None,
    *,
    write: Callable[[str], None] = lambda line: None,
    piped: BinaryIO | None = None,
) -> Generator[BatchRun]:
    """Open the input and the output; `write` gets the lines if the request names no output, and
    `piped` is read if it names no input. Raises MlxchatError."""
    if platform.launched_rank() is not None:
        raise UsageError("a batch runs on one machine: start it without mlx.launch")
    observer = observer or Observer()
    # An invalid one is refused before anything is opened.
    constraint = constraint_of(request.answer)
    for notice in () if constraint is None else constraint.notices:
        observer.warn(notice)
    with Rows(request.input, piped, request.output) as rows:
        if request.output is None:
            yield BatchRun(request, Pending(rows, write), observer)
            return
        with observer.waiting(f"reading {request.output} …"):
            output = ResultFile(request.output.expanduser(), rows.stream)
        with output:
            if damaged := output.finished.damaged:
                lines = ", ".join(map(str, damaged[:NAMED])) + ", …" * (len(damaged) > NAMED)
                stay = "damaged lines stay, and their rows run again"
                observer.warn(f"{request.output}: {stay}: {lines}")
            yield BatchRun(request, Pending(rows, output.write, output.finished), observer)
