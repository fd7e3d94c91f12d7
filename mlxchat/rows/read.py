"""Reads the rows of a batch, whatever their form, one at a time.

Only a hash of each id is kept, about 100 bytes per row, to find ids that are used twice.
"""

import io
import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from queue import Empty, Queue
from typing import BinaryIO, Self

from mlxchat.errors import InputError, UsageError
from mlxchat.files import reported_as
from mlxchat.request import BatchInput
from mlxchat.rows.json_lines import json_rows
from mlxchat.rows.row import MAX_CHARS, TOO_LONG, Row, check_fields
from mlxchat.rows.text_rows import (
    TABLE_TEMPLATE,
    TEXT_TEMPLATE,
    file_rows,
    find_files,
    line_rows,
    read_records,
    table_rows,
)

# Larger files are not counted: reading them twice would take too long.
MAX_COUNTED_BYTES = 500_000_000

# Read ahead of the rows that run, from input that may be slow to come.
ROWS_AHEAD = 64

# How text in UTF-16 begins, its bytes read as UTF-8.
UTF16_MARKS = ("\udcff\udcfe", "\udcfe\udcff")


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
        for number in count(1):
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
