"""The output of a batch: a line per result, appended in one write, and the rows it still lacks.

A line that was written survives the end of the process; the disk is synced about once per second,
so a power cut loses at most the lines of that second, which a second run does again.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from mlxchat.errors import OutputError
from mlxchat.files import reported_as
from mlxchat.rows.read import Rows
from mlxchat.rows.row import Row, key_of
from mlxchat.store.output_file import OutputFile, open_alone
from mlxchat.units import json_line

SYNC_EVERY_S = 1.0

# How the line of a result begins, by which what a crash left of it is recognized.
BEGINNING = b'{"id": '

# Between two looks at whether to stop.
WAIT_S = 0.1

# How many rows that need not run are passed before others continue.
MAX_PASSED = 256


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a row: an answer, or an `error`.

    `value` is the complete answer to a schema. `thought` is None if the row has none or hides it;
    `thought_cut` is None unless the budget closed it.
    `complete` is None without a constraint, and False with an `error` of the answer. `notices` say
    what differs from a row run alone. `logprobs` has an object for each token. `seconds` count from
    the first step of the row to the last, others running beside it.
    """

    row: Row
    error: str | None = None
    value: Any = None
    text: str = ""
    finish_reason: str = ""
    thought: str | None = None
    complete: bool | None = None
    notices: tuple[str, ...] = ()
    logprobs: Sequence[Mapping[str, Any]] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    thought_tokens: int = 0
    thought_cut: bool | None = None
    evicted_tokens: int = 0
    ttft_s: float = 0.0
    seconds: float = 0.0
    seed: int = 0

    def line(self) -> str:
        """The line for the output, with its end."""
        row = self.row
        if self.error is not None:
            id_ = row.number if row.id is None else None if row.id == "" else row.id
            record = {"id": id_, "row": row.number, "error": self.error}
            record |= {"text": self.text} if self.text else {}
        else:
            # The number is the name of a row without an id, and says so: another may have it as id.
            record = {"id": row.number, "row": row.number} if row.id is None else {"id": row.id}
            answer = {each.name: getattr(self, each.name) for each in fields(self)[2:]}
            del answer["text" if self.value is not None else "value"]
            record |= {name: each for name, each in answer.items() if each not in (None, ())}
        return json_line(record)


@dataclass
class Finished:
    """What an output already has: the keys of answered `rows`, and whether an answer is not
    complete; hashes of the lines of failed ones; and the numbers of `damaged` lines. The file is
    good up to `good_bytes`."""

    rows: dict[bytes, bool] = field(default_factory=dict[bytes, bool])
    failures: set[bytes] = field(default_factory=set[bytes])
    damaged: list[int] = field(default_factory=list[int])
    good_bytes: int = 0

    def add(self, line: bytes) -> bool:
        """Add a line's row; return whether it is a result. Raises ValueError, RecursionError."""
        match found := json.loads(line):
            case {"error": str()}:
                self.failures.add(_hash(line))
            case {"finish_reason": _, "row": int(number)}:
                self.rows[key_of(None, number)] = found.get("complete") is False
            case {"finish_reason": _, "id": int() | str() as id_}:
                self.rows[key_of(id_, None)] = found.get("complete") is False
            case _:
                return False
        return True


def read_finished(file: BinaryIO, path: Path) -> Finished:
    """Read the lines of an output. Raises OutputError for any other file, and OSError."""
    finished = Finished()
    is_ours = True
    for number, line in enumerate(file, 1):
        try:
            is_result = finished.add(line)
        except (ValueError, RecursionError):
            if not line.endswith(b"\n"):
                # A crash cut it short, unless it is another file's.
                is_ours = line.startswith(BEGINNING[: len(line)])
                break
            is_result = not line.strip()
        finished.damaged += [] if is_result else [number]
        finished.good_bytes += len(line)
    if not finished.rows and not finished.failures and (finished.damaged or not is_ours):
        raise OutputError(f"{path} is not the output of a batch: choose another name")
    return finished


def _hash(line: bytes) -> bytes:
    return blake2b(line.rstrip(b"\n"), digest_size=16).digest()


class ResultFile(OutputFile):
    """A file that this process alone appends to. `finished` is what it had at the beginning: an
    unfinished last line is cut off.

    Raises OutputError if it is a pipe or a device, if another process writes it, if it is not the
    output of a batch, or cannot be read or written.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._synced_s = clock()
        is_new = not os.path.lexists(path)
        descriptor = open_alone(path, os.O_RDWR | os.O_CREAT)
        try:
            with reported_as(OutputError, f"read {path}"):
                with os.fdopen(os.dup(descriptor), "rb") as file:
                    self.finished = read_finished(file, path)
                size = self.finished.good_bytes
                lacks_end = size and os.pread(descriptor, 1, size - 1) != b"\n"
            with reported_as(OutputError, f"write {path}"):
                os.ftruncate(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        super().__init__(path, descriptor, size, is_new=is_new)
        if lacks_end:
            self.write("\n")

    def write(self, text: str) -> None:
        """Append a line. Raises OutputError, also if the file has been deleted or moved."""
        with reported_as(OutputError, f"write {self._path}"):
            # Before it is written: a row that is reported as finished is in the file.
            if os.fstat(self._descriptor).st_nlink:
                self.check_name()
        super().write(text)
        if self._clock() - self._synced_s >= SYNC_EVERY_S:
            self._synced_s = self._clock()
            self.sync()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Sync and close it. If nothing came of the run, an empty new file is removed."""
        try:
            if error is None:
                self.end()
        finally:
            super().__exit__(kind, error, trace)


@dataclass
class BatchFigures:
    """The progress of a batch of `total` rows (None if unknown), and the tokens of this run.

    `skipped` rows were finished by an earlier run; `incomplete` are among both; `invalid` answers
    to a constraint, among `failed`. `first_error` is that of the first row that failed. `seconds`
    are those since generation began: loading the model does not count. Of the prompts being read,
    `reading` has how many tokens of how many; `cut` are those that were larger than the window.
    """

    total: int | None = None
    skipped: int = 0
    finished: int = 0
    incomplete: int = 0
    failed: int = 0
    invalid: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    evicted_tokens: int = 0
    first_error: str | None = None
    seconds: float = 0.0
    reading: tuple[int, int] = (0, 0)

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
                self.figures.incomplete += self._finished.rows[row.key]
            elif row.error is None:
                return row
            else:
                self.finish(Result(row, error=row.error))
        return None

    def has_more(self, should_stop: Callable[[], bool]) -> bool:
        """Whether there is anything to run. Waits for that, unless `should_stop` returns True."""
        while self._next is None and not self.is_over and not should_stop():
            self._next = self.take()
        return self._next is not None

    def finish(self, result: Result) -> None:
        """Write the result of a row that was taken. Raises OutputError."""
        line, figures = result.line(), self.figures
        figures.evicted_tokens += result.evicted_tokens
        if result.error is None:
            self._write(line)
            figures.finished += 1
            figures.incomplete += result.complete is False
            return
        if figures.first_error is None:
            figures.first_error = f"row {result.row.number:,}: {result.error}"
        # An error that an earlier run has written is not written again.
        if _hash(line.encode("utf-8", "replace")) not in self._finished.failures:
            self._write(line)
        figures.failed += 1
        figures.invalid += result.complete is False
