"""Reads the rows of a batch, whatever their form, one at a time.

Only a hash of each id is kept, about 100 bytes per row, to find ids that are used twice.
"""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import BinaryIO, Self

from mlxchat.errors import InputError, UsageError
from mlxchat.files import open_to_read, reported_as
from mlxchat.request import BatchInput
from mlxchat.row_template import RowTemplate
from mlxchat.rows.ahead import may_wait
from mlxchat.rows.documents import (
    FILE_FIELDS,
    LINE_FIELDS,
    check_fields,
    file_rows,
    find_files,
    line_rows,
)
from mlxchat.rows.json_lines import json_row
from mlxchat.rows.lines import TOO_LONG, bounded_lines
from mlxchat.rows.row import Form, Row
from mlxchat.rows.table import read_records, table_rows
from mlxchat.wording import Field

# Larger files are not counted: reading them twice would take too long.
MAX_COUNTED_BYTES = 500_000_000


class Rows:
    """The rows of an input, as an iterator, and a context that closes the input; malformed ones are
    among them. The `output` is not a row even if the pattern matches it.

    Raises UsageError, before anything is read, for a template whose fields cannot be there, and
    for a pattern that no file matches; InputError if the input cannot be opened or read.
    """

    def __init__(
        self, source: BatchInput, stdin: BinaryIO | None = None, output: Path | None = None
    ) -> None:
        self._source = source
        self._paths = None if source.pattern is None else find_files(source.pattern, output)
        self._stream = self._open(stdin)
        if source.lines or source.pattern is not None:
            check_fields(source.template, LINE_FIELDS if source.lines else FILE_FIELDS)
        self._seen: set[bytes] = set()
        self._rows = _closing(self._unchecked(), self._stream if self.may_wait else None)

    @property
    def stream(self) -> BinaryIO | None:
        """The file that is read, if it is a single one."""
        return self._stream

    @property
    def may_wait(self) -> bool:
        """Whether the next row may be long in coming."""
        return may_wait(self._stream)

    def count(self) -> int | None:
        """The number of rows, if that is quickly known."""
        if self._paths is not None:
            return len(self._paths)
        path = None if self._source.path is None else self._source.path.expanduser()
        if path is None or not path.is_file() or path.stat().st_size > MAX_COUNTED_BYTES:
            return None
        with suppress(OSError, InputError), path.open("rb") as stream:
            if self._source.is_table:
                return max(sum(1 for _ in read_records(stream, self._source.delimiter)) - 1, 0)
            return sum(1 for _, line in bounded_lines(stream) if line is None or line.strip())
        return None

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        row = next(self._rows)
        if row.id is None:
            return row
        if row.key in self._seen:
            return row.broken(f"id {json.dumps(row.id)} is used by an earlier row", id=None)
        self._seen.add(row.key)
        return row

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # Closing a stream waits for a thread that reads it, and that may wait for input.
        if self._stream is not None and self._source.path is not None and not self.may_wait:
            self._stream.close()

    def _open(self, stdin: BinaryIO | None) -> BinaryIO | None:
        path = self._source.path
        if self._paths is not None:
            return None
        if path is not None:
            return _open(path)
        if stdin is None:
            raise UsageError(
                "nothing to read: name a file of rows, pipe them in, or use ", Field("pattern")
            )
        # A thread that still waits in sys.stdin's own reader at the exit would crash Python.
        return os.fdopen(os.dup(stdin.fileno()), "rb") if may_wait(stdin) else stdin

    def _unchecked(self) -> Iterator[Row]:
        template = self._source.template
        if self._paths is not None:
            return file_rows(self._paths, template)
        assert self._stream is not None
        if self._source.lines:
            return line_rows(self._stream, template)
        if self._source.is_table:
            return table_rows(self._stream, template, self._source.delimiter)
        return _json_rows(self._stream, template)


def _closing(rows: Iterator[Row], stream: BinaryIO | None) -> Iterator[Row]:
    """The rows; after the last one, the stream is closed, in the thread that reads it."""
    with stream or nullcontext():
        yield from rows


def _json_rows(stream: BinaryIO, template: RowTemplate | None) -> Iterator[Row]:
    form, is_first = Form.OURS, True
    for number, line in bounded_lines(stream):
        if line is None:
            yield Row(number, None, form=form).broken(f"the line is {TOO_LONG}")
        elif line.strip():
            row = json_row(number, line, template, form, is_first=is_first)
            form, is_first = row.form, False
            yield row


def _open(path: Path) -> BinaryIO:
    """A file, or a pipe that has a name, such as the shell's <(command)."""
    with reported_as(InputError, f"read {path}"):
        expanded = path.expanduser()
        if stat.S_ISFIFO(os.stat(expanded).st_mode):  # noqa: PTH116
            return expanded.open("rb")
        return open_to_read(expanded)
