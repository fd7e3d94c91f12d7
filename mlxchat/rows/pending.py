"""The rows that are still to be run, and their results on the way to the output."""

from collections.abc import Callable
from dataclasses import dataclass

from mlxchat.rows.output import Finished
from mlxchat.rows.read import Rows
from mlxchat.rows.results import Result
from mlxchat.rows.row import Row

# Between two looks at whether to stop.
WAIT_S = 0.1

# How many rows that need not run are passed before others continue.
MAX_PASSED = 256


@dataclass
class BatchFigures:
    """The progress of a batch of `total` rows (None if unknown), and the tokens of this run.

    `skipped` rows were finished by an earlier run; `incomplete` are among `finished`; `invalid`
    answers to a constraint, among `failed`. `first_error` is that of the first row
    that failed. `seconds` are those since generation began: loading the model does not count.
    """

    total: int | None = None
    skipped: int = 0
    finished: int = 0
    incomplete: int = 0
    failed: int = 0
    invalid: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    evicted_tokens: int = 0
    first_error: str | None = None
    seconds: float = 0.0

    @property
    def done(self) -> int:
        return self.skipped + self.finished + self.failed

    @property
    def tokens_per_s(self) -> float:
        return self.generated_tokens / self.seconds if self.seconds else 0.0


class Pending:
    """Yields each row that is to be run, and writes the results."""

    def __init__(
        self, rows: Rows, write: Callable[[str], object], finished: Finished | None = None
    ) -> None:
        self.figures = BatchFigures(total=rows.count())
        self._next: Row | None = None
        self._rows = rows
        self._write = write
        self._finished = finished or Finished()

    @property
    def is_over(self) -> bool:
        return self._rows.is_over

    def take(self, wait_s: float = WAIT_S) -> Row | None:
        """The next row to run. None if there is no more, which `is_over` then says, if none has
        come within `wait_s` seconds, or if many were passed that need not run. Malformed rows are
        reported on the way.

        Raises InputError if the input cannot be read, OutputError.
        """
        if self._next is not None:
            row, self._next = self._next, None
            return row
        for _ in range(0 if self.is_over else MAX_PASSED):
            row = self._rows.take(wait_s)
            if row is None:
                return None
            if row.key in self._finished.rows:
                self.figures.skipped += 1
            elif row.error is None:
                return row
            else:
                self.finish(Result(row, error=row.error))
        return None

    def has_more(self, should_stop: Callable[[], bool]) -> bool:
        """Whether there is anything to run at all, before the first row is taken. Waits for it,
        unless `should_stop` returns True."""
        while self._next is None and not self.is_over and not should_stop():
            self._next = self.take()
        return self._next is not None

    def finish(self, result: Result) -> None:
        """Write the result of a row that was taken. Raises OutputError."""
        line, figures = result.line(), self.figures
        figures.prompt_tokens += result.prompt_tokens
        figures.cached_tokens += result.cached_tokens
        figures.evicted_tokens += result.evicted_tokens
        if result.error is None:
            self._write(line)
            figures.finished += 1
            figures.incomplete += result.complete is False
            return
        if figures.first_error is None:
            figures.first_error = f"row {result.row.number:,}: {result.error}"
        # An error that an earlier run has written is not written again.
        if not self._finished.has(line):
            self._write(line)
        figures.failed += 1
        figures.invalid += result.complete is False
