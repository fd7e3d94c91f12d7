"""The rows that are still to be run, and their results on the way to the output."""

from collections.abc import Callable
from dataclasses import dataclass

from mlxchat.rows.output import Output
from mlxchat.rows.read import Rows
from mlxchat.rows.results import Result
from mlxchat.rows.row import Row

# Between two looks at whether to stop.
WAIT_S = 0.1

# How many rows that need not run are passed before others continue.
MAX_PASSED = 256


@dataclass
class Tally:
    """Counts of rows. `skipped` were finished by an earlier run; `incomplete` are among `finished`;
    `malformed`, and `invalid` answers to a constraint, among `failed`."""

    skipped: int = 0
    finished: int = 0
    incomplete: int = 0
    failed: int = 0
    malformed: int = 0
    invalid: int = 0

    @property
    def done(self) -> int:
        return self.skipped + self.finished + self.failed


class Pending:
    """Yields each row that is to be run, and writes the results. `first_error` is that of the first
    row that failed."""

    def __init__(self, rows: Rows, output: Output) -> None:
        self.tally = Tally()
        self.first_error: str | None = None
        self._next: Row | None = None
        self._rows = rows
        self._output = output

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
            if row.key in self._output.finished.rows:
                self.tally.skipped += 1
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
        line, tally = result.line(), self.tally
        if result.error is None:
            self._output.write(line)
            tally.finished += 1
            tally.incomplete += result.complete is False
            return
        if self.first_error is None:
            self.first_error = f"row {result.row.number:,}: {result.error}"
        # An error that an earlier run has written is not written again.
        if not self._output.finished.has(line):
            self._output.write(line)
        tally.failed += 1
        tally.malformed += result.row.error is not None
        tally.invalid += result.complete is False
