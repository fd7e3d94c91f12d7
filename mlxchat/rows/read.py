"""Reads the rows of a batch, whatever their form, one at a time: lines of text, records of a table,
whole files, or JSON.

Only a hash of each id is kept, about 100 bytes per row, to find ids that are used twice.
"""

import csv
import glob
import io
import itertools
import json
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import cached_property
from pathlib import Path
from queue import Empty, Queue
from typing import BinaryIO, Self

from mlxchat.errors import InputError, UsageError
from mlxchat.files import open_to_read, reported_as
from mlxchat.request import BatchInput
from mlxchat.request.batch import RowTemplate
from mlxchat.rows.json_lines import json_rows
from mlxchat.rows.row import MAX_CHARS, TOO_LONG, Row, RowError, check_fields, check_text, shortened
from mlxchat.units import count

# Larger files are not counted: reading them twice would take too long.
MAX_COUNTED_BYTES = 500_000_000

# Read ahead of the rows that run, from input that may be slow to come.
ROWS_AHEAD = 64

# How text in UTF-16 begins, its bytes read as UTF-8.
UTF16_MARKS = ("\udcff\udcfe", "\udcfe\udcff")

DELIMITERS = ",;\t"
ID = "id"

TEXT_TEMPLATE = RowTemplate.parse("{text}")
TABLE_TEMPLATE = RowTemplate.parse("{prompt}")


def line_rows(lines: Iterable[str], template: RowTemplate) -> Iterator[Row]:
    """Yield a row for each line that is not blank."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            row = Row(number, number)
            try:
                yield row.filled(template, {"text": line.rstrip("\r\n")})
            except RowError as error:
                yield row.broken(error)


def find_files(pattern: str, output: Path | None = None) -> list[str]:
    """The files that match the pattern, sorted, without directories and the `output` of an earlier
    run. Raises UsageError if nothing matches."""
    pattern = str(Path(pattern).expanduser())
    found = sorted(glob.iglob(pattern, recursive=True))  # noqa: PTH207
    mine = None if output is None else output.expanduser().resolve()
    paths = [each for each in found if not Path(each).is_dir() and Path(each).resolve() != mine]
    if not paths:
        raise UsageError(f"--files: no file matches {pattern}")
    return paths


def file_rows(paths: Sequence[str], template: RowTemplate) -> Iterator[Row]:
    """Yield a row for each file, with its path as the id."""
    for number, path in enumerate(paths, 1):
        row = Row(number, None)
        try:
            row = Row(number, check_text("the path", path))
            yield row.filled(template, {"text": _read(path), "file": path})
        except RowError as error:
            yield row.broken(error)


def _read(path: str) -> str:
    try:
        with open_to_read(Path(path)) as file:
            data = file.read(MAX_CHARS + 1)
    except OSError as error:
        raise RowError(f"cannot read the file: {error.strerror or error}") from error
    if len(data) > MAX_CHARS:
        raise RowError(f"the file is {TOO_LONG}")
    return check_text("the file", data.decode("utf-8-sig", "surrogateescape"))


def table_rows(lines: Iterable[str], template: RowTemplate, delimiter: str | None) -> Iterator[Row]:
    """Yield the rows; a row's number is its place after the header, and its id is in the column
    "id", if any.

    Raises UsageError, before the first row, if the header lacks a column.
    """
    records = read_records(lines, delimiter)
    header = next(records, None)
    if header is None:
        return
    names = _names(header, template)
    for number, record in enumerate(records, 1):
        row = Row(number, None)
        try:
            if isinstance(record, RowError):
                raise record
            if len(record) != len(names):
                raise RowError(f"{count(len(record), 'cell')}, but the header has {len(names)}")
            values = dict(zip(names, record, strict=True))
            # Cells are text: an id 7 in a table is not the number 7.
            row = Row(number, check_text(ID, values[ID]) if values.get(ID) else number)
            yield row.filled(template, values)
        except RowError as error:
            yield row.broken(error)


def read_records(lines: Iterable[str], delimiter: str | None) -> Iterator[list[str] | RowError]:
    """Yield the records, the header first; an error for one that is malformed. Records of empty
    cells are skipped. The `delimiter` is by default the comma, semicolon or tab that the header has
    most of."""
    csv.field_size_limit(MAX_CHARS)
    lines = iter(lines)
    first = next(lines, "")
    texts = itertools.chain([first], lines)
    delimiter = delimiter or max(DELIMITERS, key="".join(first.split('"')[::2]).count)
    while True:
        try:
            for record in csv.reader(texts, delimiter=delimiter, strict=True):
                if any(map(str.strip, record)):
                    yield record
            return
        except csv.Error as error:
            # The reader is within the record: begin again at the next line.
            yield RowError(f"malformed CSV: {error}")


def _names(header: list[str] | RowError, template: RowTemplate) -> list[str]:
    """The names of the columns, among them those of the template, each once."""
    try:
        if isinstance(header, RowError):
            raise header
        check_text("empty", "".join(header))
    except RowError as error:
        raise InputError(f"the header of the table is {error}") from error
    names = [name.strip() for name in header]
    for name in (*template.fields, ID):
        if names.count(name) > 1:
            raise UsageError(f"the table has two columns named {shortened(name)}")
    check_fields(template, names)
    return names


class Rows:
    """The rows of an input, as an iterator, and a context that closes the input; malformed ones are
    among them. The `output` is not a row even if the pattern matches it. `stream` is the file that
    is read, if it is a single one.

    Raises UsageError, before anything is read, for a template whose fields cannot be there, and
    for a pattern that no file matches; InputError if the input cannot be opened or read.
    """

    def __init__(
        self, source: BatchInput, stdin: BinaryIO | None = None, output: Path | None = None
    ) -> None:
        self.is_over = False
        self._source = source
        self._paths = None if source.pattern is None else find_files(source.pattern, output)
        if source.template is not None and (source.lines or source.pattern is not None):
            check_fields(source.template, ["text"] if source.lines else ["text", "file"])
        self.stream = self._open(stdin)
        self._may_wait = _may_wait(self.stream)
        self._rows = self._unique()

    def count(self) -> int | None:
        """The number of rows, if that is quickly known."""
        if self._paths is not None:
            return len(self._paths)
        path = None if self._source.path is None else self._source.path.expanduser()
        if path is None or not path.is_file() or path.stat().st_size > MAX_COUNTED_BYTES:
            return None
        with suppress(OSError, InputError), path.open("rb") as stream:
            lines = read_lines(stream)
            if self._source.is_table:
                return max(sum(1 for _ in read_records(lines, self._source.delimiter)) - 1, 0)
            return sum(1 for line in lines if line.strip())
        return None

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def take(self, wait_s: float) -> Row | None:
        """The next row. None if there is no more, which `is_over` then says, or if none has come
        within `wait_s` seconds. Raises InputError if the input cannot be read."""
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # Closing a stream waits for a thread that reads it, and that may wait for input.
        if self.stream is not None and not self._may_wait:
            self.stream.close()

    @cached_property
    def _queue(self) -> "Queue[Row | Exception | None]":
        """Filled by a thread that reads the rows."""
        queue: Queue[Row | Exception | None] = Queue(ROWS_AHEAD)
        # A daemon, because nothing can interrupt its wait for input.
        threading.Thread(target=self._read, args=(queue,), daemon=True).start()
        return queue

    def _read(self, queue: "Queue[Row | Exception | None]") -> None:
        try:
            with self.stream or nullcontext():
                for row in self._rows:
                    queue.put(row)
        except Exception as error:  # noqa: BLE001  (raised by `take`, in the other thread)
            queue.put(error)
        queue.put(None)

    def _open(self, stdin: BinaryIO | None) -> BinaryIO | None:
        path = self._source.path
        if self._paths is not None:
            return None
        if path is not None:
            # It may be a pipe that has a name, such as the shell's <(command).
            with reported_as(InputError, f"read {path}"):
                return path.expanduser().open("rb")
        if stdin is None:
            raise UsageError("nothing to read: name a file of rows, pipe them in, or use --files")
        if isinstance(stdin, io.BytesIO):
            return stdin
        # A thread that still waits in sys.stdin's own reader at the exit would crash Python.
        return os.fdopen(os.dup(stdin.fileno()), "rb")

    def _unique(self) -> Iterator[Row]:
        seen: set[bytes] = set()
        for row in self._in_form():
            if row.id is not None and row.key in seen:
                yield row.broken(f"id {json.dumps(row.id)} is used by an earlier row", id=None)
                continue
            if row.id is not None:
                seen.add(row.key)
            yield row

    def _in_form(self) -> Iterator[Row]:
        template = self._source.template
        if self._paths is not None:
            return file_rows(self._paths, template or TEXT_TEMPLATE)
        assert self.stream is not None
        lines = read_lines(self.stream)
        if self._source.lines:
            return line_rows(lines, template or TEXT_TEMPLATE)
        if self._source.is_table:
            return table_rows(lines, template or TABLE_TEMPLATE, self._source.delimiter)
        return json_rows(lines, template)


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield the lines, with their ends, as they arrive. Bytes that are not UTF-8 become surrogates.
    Closes the stream in the end. Raises InputError for UTF-16, for a line that is too long, and if
    reading fails."""
    with io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="") as text:
        for number in itertools.count(1):
            with reported_as(InputError, "read the input"):
                line = text.readline(MAX_CHARS + 1)
            if not line:
                return
            if number == 1 and line.startswith(UTF16_MARKS):
                raise InputError("the input is UTF-16: convert it to UTF-8 first")
            if len(line) > MAX_CHARS:
                raise InputError(f"line {number:,} of the input is {TOO_LONG}")
            yield line


def _may_wait(stream: BinaryIO | None) -> bool:
    """Whether reading may wait for another program or a person: not from a file."""
    try:
        return stream is not None and not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:
        # Not a file of the system, but in memory.
        return False
