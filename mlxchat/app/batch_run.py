"""A batch from its input to its output: reads the rows, runs those without an answer, and writes
each result."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

from mlxchat import platform
from mlxchat.app.answer import constraint_of
from mlxchat.app.observer import Observer
from mlxchat.app.opening import Loaded, open_model
from mlxchat.app.prompt import count_pinned
from mlxchat.app.side_by_side import SideBySide
from mlxchat.engine.prefill import ShouldStop
from mlxchat.errors import UsageError
from mlxchat.request import BatchRequest, Request
from mlxchat.rows.output import Output, ResultFile
from mlxchat.rows.pending import Pending, Tally
from mlxchat.rows.read import Rows
from mlxchat.rows.results import Result


@dataclass
class Figures:
    """The progress of a batch: `rows` of `total` are done (None if unknown), and the tokens of this
    run since generation began."""

    rows: Tally
    total: int | None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    evicted_tokens: int = 0
    first_error: str | None = None
    _began_s: float = field(default_factory=time.perf_counter)
    _ended_s: float | None = None

    @property
    def seconds(self) -> float:
        return (self._ended_s or time.perf_counter()) - self._began_s

    @property
    def tokens_per_s(self) -> float:
        return self.generated_tokens / self.seconds if self.seconds else 0.0

    def begin(self) -> None:
        """Generation begins now: loading the model does not count."""
        self._began_s = time.perf_counter()

    def end(self) -> None:
        self._ended_s = time.perf_counter()

    def add(self, result: Result) -> None:
        self.prompt_tokens += result.prompt_tokens
        self.cached_tokens += result.cached_tokens
        self.evicted_tokens += result.evicted_tokens


OnProgress = Callable[[Figures], object]


class BatchRun:
    """A batch whose input and output are open. The model is loaded when a row needs it."""

    def __init__(
        self, request: BatchRequest, rows: Rows, output: Output, observer: Observer
    ) -> None:
        self._request = request
        self._observer = observer
        self._pending = Pending(rows, output)
        self.figures = Figures(self._pending.tally, rows.count())
        self.can_continue = isinstance(output, ResultFile)

    def run(
        self,
        should_stop: ShouldStop = lambda: False,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        """Run the rows until all are done or `should_stop` returns True. Raises MlxchatError; what
        is finished is written."""
        for _ in self.results(should_stop, on_progress):
            pass

    def results(
        self,
        should_stop: ShouldStop = lambda: False,
        on_progress: OnProgress = lambda _: None,
    ) -> Iterator[Result]:
        """As `run`, but yield the results that are not malformed rows, in the order in which they
        finish."""
        figures, pending = self.figures, self._pending
        try:
            with self._observer.waiting("reading the input …"):
                has_more = pending.has_more(should_stop)
            if not has_more:
                return
            loaded = self._load()

            def on_tokens(count: int) -> None:
                figures.generated_tokens += count
                on_progress(figures)

            runner = SideBySide(
                self._request,
                loaded,
                should_stop=should_stop,
                on_tokens=on_tokens,
                notify=self._observer.warn,
            )
            figures.begin()
            on_progress(figures)
            for result in runner.results(pending):
                figures.add(result)
                pending.finish(result)
                on_progress(figures)
                yield result
        finally:
            figures.first_error = pending.first_error
            figures.end()

    def _load(self) -> Loaded:
        request = Request(
            setup=self._request.setup,
            system=self._request.system,
            raw=self._request.raw,
            template_args=self._request.template_args,
            think=self._request.think,
        )
        return open_model(
            self._request.setup,
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
            output = Output(write)
        else:
            with observer.waiting(f"reading {request.output} …"):
                output = ResultFile(request.output.expanduser(), rows.stream)
        with output:
            if request.output is not None:
                notice = output.finished.notice(request.output)
                if notice is not None:
                    observer.warn(notice)
            yield BatchRun(request, rows, output, observer)
