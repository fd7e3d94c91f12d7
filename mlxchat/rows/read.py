"""Reads the rows of a batch, one at a time, in whatever form they are: each form has a function,
and a template, if there is one, makes the prompt from the fields that it finds.

Only a hash of each id is kept, about 100 bytes per row, to find ids that are used twice.
"""

import csv
import io
import json
import os
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property, partial
from pathlib import Path
from queue import Empty, Queue
from typing import BinaryIO

from pydantic_core import from_json

from mlxchat.errors import InputError, MlxchatError, UsageError
from mlxchat.files import open_to_read, reported_as
from mlxchat.options import in_home
from mlxchat.request import BatchInput
from mlxchat.request.batch import RowTemplate
from mlxchat.rows.row import (
    ROW_OPTIONS,
    Fields,
    Row,
    RowError,
    RowId,
    check_id,
    check_text,
    shortened,
)
from mlxchat.text.documents import files_in
from mlxchat.units import count

# A longer line, record or file is an error.
MAX_CHARS = 16_000_000
RENUMBERED = "once it is mended, rows below may have other numbers: use ids or another output"
TOO_LONG = f"longer than {MAX_CHARS:,} characters"

# Larger files are not counted: reading them twice would take too long.
MAX_COUNTED_BYTES = 500_000_000

# Read ahead of the rows that run, from input that may be slow to come.
ROWS_AHEAD = 64

DELIMITERS = ",;\t"

# That of rows which are not JSON, if the user gives none.
PROMPT = RowTemplate.parse("{prompt}")

# A row: its number, its id unless a field has it, and a function that returns them or a RowError.
Found = tuple[int, RowId | None, Callable[[], Fields]]


class Rows(AbstractContextManager["Rows"]):
    """The rows of an input, malformed ones among them, and a context that closes the input. The
    `output` is not a row even if a pattern matches it.

    Raises InputError if the input cannot be opened or read, or no file matches the pattern, and
    with the first row UsageError for a template whose fields it has not.
    """

    def __init__(
        self, source: BatchInput, stdin: BinaryIO | None = None, output: Path | None = None
    ) -> None:
        self.is_over = False
        self.source, self.output = source, output
        self.template = source.template or (None if source.form == "json" else PROMPT)
        self._stream = self._open(stdin)
        # For another program or a person: not for a file, or bytes in memory.
        self._may_wait = False
        with suppress(OSError):
            status = None if self._stream is None else os.fstat(self._stream.fileno())
            self._may_wait = status is not None and not stat.S_ISREG(status.st_mode)
            if status and output and os.path.samestat(status, in_home(output).stat()):
                self.__exit__(None, None, None)
                raise UsageError(f"{output} is the input too: choose another name for the output")
        self._rows = self._read(self._stream)

    def count(self) -> int | None:
        """The number of rows, if that is quickly known."""
        path = None if self.source.path is None else in_home(self.source.path)
        with suppress(OSError, MlxchatError):
            if self._stream is None:
                return sum(1 for _ in self._found(None))
            if path is not None and path.is_file() and path.stat().st_size <= MAX_COUNTED_BYTES:
                return sum(1 for _ in self._found(path.open("rb")))
        return None

    def take(self, wait_s: float) -> Row | None:
        """The next row. None if there is no more, which `is_over` then says, or if none has come
        within `wait_s` seconds. Raises as the class does."""
        if not self._may_wait:
            row = next(self._rows, None)
        else:
            try:
                row = self._queue.get(timeout=wait_s)
            except Empty:
                return None
        if isinstance(row, Exception):
            raise row
        self.is_over = row is None
        return row

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # Closing a stream waits for a thread that reads it, and that may wait for input.
        if self._stream is not None and not self._may_wait:
            self._stream.close()

    @cached_property
    def _queue(self) -> "Queue[Row | Exception | None]":
        """Filled by a thread that reads the rows."""
        queue: Queue[Row | Exception | None] = Queue(ROWS_AHEAD)

        def fill() -> None:
            try:
                with self._stream or nullcontext():
                    for row in self._rows:
                        queue.put(row)
            except Exception as error:  # noqa: BLE001  (raised by `take`, in the other thread)
                queue.put(error)
            queue.put(None)

        # A daemon, because nothing can interrupt its wait for input.
        threading.Thread(target=fill, daemon=True).start()
        return queue

    def _open(self, stdin: BinaryIO | None) -> BinaryIO | None:
        path = self.source.path
        if self.source.form == "pattern":
            return None
        if path is not None:
            # It may be a pipe that has a name, such as the shell's <(command).
            with reported_as(InputError, f"read {path}"):
                return in_home(path).open("rb")
        if stdin is None:
            raise UsageError("nothing to read: name a file of rows, pipe them in, or use --files")
        is_own = stdin is getattr(sys.stdin, "buffer", None)
        if isinstance(stdin, io.BufferedReader) and (is_own or not stdin.seekable()):
            # A thread that still waits in its own reader would crash Python at the exit.
            return os.fdopen(os.dup(stdin.fileno()), "rb")
        return stdin

    def _found(self, stream: BinaryIO | None) -> Iterator[Found]:
        return FORMS[self.source.form](self, iter(()) if stream is None else read_lines(stream))

    def _read(self, stream: BinaryIO | None) -> Iterator[Row]:
        seen: set[bytes] = set()
        is_checked = False
        for number, id_, fields_of in self._found(stream):
            row = Row(number, id_ or "")
            try:
                fields = fields_of()
                named = "custom_id" if "custom_id" in fields and "id" not in fields else "id"
                row = Row(number, check_id(fields.get(named, id_)))
                if row.id is not None and row.key in seen:
                    used, row = row.id, Row(number, "")
                    raise RowError(f"id {json.dumps(used)} is used by an earlier row")
                if self.template is not None:
                    is_first, is_checked = not is_checked, True
                    fields = self._filled(fields, self.template, is_first=is_first)
                yield row.asking(fields)
            except RowError as error:
                yield row.broken(error)
            seen.add(row.key)

    def _filled(self, fields: Fields, template: RowTemplate, *, is_first: bool) -> Fields:
        """The template's prompt, and the options of a row of JSON."""
        values: dict[str, str] = {}
        for name in template.fields:
            value = fields.get(name)
            if is_first and name not in fields:
                known = ", ".join(shortened(each) for each in list(fields)[:20])
                raise UsageError(
                    f"rows have no field {shortened(name)}, only {known}: use those in --template"
                )
            if value is None:
                raise RowError(f"the template's field {shortened(name)} is missing or null")
            is_text = isinstance(value, str)
            values[name] = value if is_text else json.dumps(value, ensure_ascii=False)
        # An answer of an earlier batch is data as a whole.
        is_data = self.source.form != "json" or "finish_reason" in fields
        own = set() if is_data else ROW_OPTIONS.keys() & fields.keys() - values.keys()
        return {**{name: fields[name] for name in own}, "prompt": template.fill(values)}


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield the lines, with their ends, as they arrive. Bytes that are not UTF-8 become surrogates.
    The rest of a too long line is left out. Closes the stream. Raises InputError if it fails."""
    with io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="") as text:
        while True:
            with reported_as(InputError, "read the input"):
                line = rest = text.readline(MAX_CHARS + 1)
                while len(line) > MAX_CHARS and rest and rest[-1] not in "\r\n":
                    rest = text.readline(MAX_CHARS)
            if not line:
                return
            yield line


def _whole(line: str) -> str:
    if len(line) > MAX_CHARS:
        raise RowError(f"the line is {TOO_LONG}")
    return line


# The forms


def json_rows(rows: Rows, lines: Iterator[str]) -> Iterator[Found]:
    """A row for each line that is not blank: in our form or OpenAI's; by a template, any object."""

    def fields(line: str) -> Fields:
        text = check_text("the line", _whole(line).rstrip())
        if not text.lstrip().startswith("{"):
            raise RowError("the line must be a JSON object; --lines reads text")
        try:
            return from_json(text, allow_inf_nan=False)
        except ValueError as error:
            raise RowError(f"invalid JSON: {str(error).replace(' line 1', '')}") from error

    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, None, partial(fields, line)


def line_rows(rows: Rows, lines: Iterator[str]) -> Iterator[Found]:
    """A row for each line that is not blank."""

    def fields(line: str) -> Fields:
        text = _whole(line).rstrip("\r\n")
        return {"input": text, "text": text, "prompt": text}

    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, None, partial(fields, line)


def file_rows(rows: Rows, lines: Iterator[str]) -> Iterator[Found]:
    """A row for each file of the pattern, in order, its path as the id. InputError if none is."""

    def fields(path: str, name: str) -> Fields:
        try:
            with open_to_read(Path(path)) as file:
                data = file.read(MAX_CHARS + 1)
        except OSError as error:
            raise RowError(f"cannot read the file: {error.strerror or error}") from error
        if len(data) > MAX_CHARS:
            raise RowError(f"the file is longer than {MAX_CHARS:,} bytes")
        text = check_text("the file", data.decode("utf-8-sig", "surrogateescape"))
        return {"input": text, "text": text, "prompt": text, "file": name}

    pattern = str(in_home(rows.source.pattern or ""))
    output = None if rows.output is None else os.path.realpath(rows.output)
    found = files_in(pattern) or [pattern] * os.path.lexists(pattern)
    # That of pathlib fails for a link to itself.
    paths = [each for each in found if os.path.realpath(each) != output]
    if not paths:
        raise InputError(f"--files: no file matches {pattern}")
    for number, path in enumerate(paths, 1):
        # With escapes for bytes that are not UTF-8.
        name = path.encode(errors="backslashreplace").decode()
        yield number, name, partial(fields, path, name)


def table_rows(rows: Rows, lines: Iterator[str]) -> Iterator[Found]:
    """A row for each record after the header. Raises UsageError if that has a name twice."""

    def fields(record: list[str] | RowError) -> Fields:
        cells = _cells(record)
        if len(cells) != len(names):
            raise RowError(f"{count(len(cells), 'cell')}, but the header has {len(names)}")
        return dict(zip(names, cells, strict=True))

    records = _records(lines)
    try:
        header = _cells(next(records, []))
        check_text("one that", "".join(["header", *header]))
    except RowError as error:
        raise InputError(f"the header of the table is {error}") from error
    names = [name.strip() for name in header]
    assert rows.template is not None
    for name in ("id", *rows.template.fields):
        if names.count(name) > 1:
            raise UsageError(f"the table has two columns named {shortened(name)}")
    for number, record in enumerate(records, 1):
        yield number, None, partial(fields, record)


def _records(lines: Iterator[str]) -> Iterator[list[str] | RowError]:
    """Yield the records, the header first; an error for one that is malformed. Records of empty
    cells are skipped. Cells are separated by whichever delimiter the header has most of."""
    csv.field_size_limit(MAX_CHARS)
    first = next(filter(str.strip, lines), "")
    delimiter = max(DELIMITERS, key="".join(first.split('"')[::2]).count)
    # The lines of the record being read, and those to read before others.
    taken: list[str] = []
    ahead = deque([first])

    def texts() -> Iterator[str]:
        while line := ahead.popleft() if ahead else next(lines, ""):
            taken.append(line)
            if len(line) > MAX_CHARS:
                raise csv.Error(f"the line is {TOO_LONG}")
            yield line

    while True:
        try:
            for record in csv.reader(texts(), delimiter=delimiter, strict=True):
                taken.clear()
                if any(map(str.strip, record)):
                    yield record
            return
        except csv.Error as error:
            # A stray quote may have taken in other records: begin again at the second line.
            ahead.extendleft(reversed(taken[1:]))
            taken.clear()
            yield RowError(f"malformed CSV: {error}; {RENUMBERED}")


def _cells(record: list[str] | RowError) -> list[str]:
    if isinstance(record, RowError):
        raise record
    return record


# By the option that asks for it.
FORMS: Mapping[str, Callable[[Rows, Iterator[str]], Iterator[Found]]] = {
    "json": json_rows,
    "lines": line_rows,
    "csv": table_rows,
    "pattern": file_rows,
}
