"""A batch from its input to its output: reads the rows, runs those without an answer, and writes
each result."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from mlxchat import platform
from mlxchat.app.answer import constraint_of
from mlxchat.app.observer import Observer
from mlxchat.app.opening import Loaded, open_model
from mlxchat.app.prompt import count_pinned
from mlxchat.app.side_by_side import SideBySide
from mlxchat.engine.prefill import ShouldStop
from mlxchat.errors import UsageError
from mlxchat.request import BatchRequest
from mlxchat.rows.output import BatchFigures, Pending, ResultFile
from mlxchat.rows.read import Rows
from mlxchat.rows.results import Result

OnProgress = Callable[[BatchFigures], object]


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
        loaded = self._load()

        def on_tokens(count: int) -> None:
            figures.generated_tokens += count
            figures.seconds = time.perf_counter() - began_s
            on_progress(figures)

        runner = SideBySide(
            self._request,
            loaded,
            should_stop=should_stop,
            on_tokens=on_tokens,
            notify=self._observer.warn,
        )
        began_s = time.perf_counter()
        on_tokens(0)
        for result in runner.results(pending):
            pending.finish(result)
            on_tokens(0)
            yield result

    def _load(self) -> Loaded:
        request = self._request
        return open_model(
            request.setup,
            self._observer,
            count_pinned=lambda tokenizer: count_pinned(request, tokenizer),
        )


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
            notice = output.finished.notice(request.output)
            if notice is not None:
                observer.warn(notice)
            yield BatchRun(request, Pending(rows, output.write, output.finished), observer)
