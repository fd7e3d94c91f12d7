"""Rows of a CSV table: a header, and then records whose quoted cells may have several lines."""

import csv
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from mlxchat.errors import InputError, UsageError
from mlxchat.row_template import RowTemplate
from mlxchat.rows.fields import check_id, check_text, check_unicode, shortened
from mlxchat.rows.lines import MAX_LINE_BYTES, TOO_LONG, bounded_lines
from mlxchat.rows.row import Row, RowError
from mlxchat.units import count
from mlxchat.wording import Field

DELIMITERS = ",;\t"
PROMPT, ID = "prompt", "id"

Record = list[str] | RowError


class _TooLong(Exception):
    """A record is too long, or its line."""


def table_rows(
    stream: BinaryIO, template: RowTemplate | None, delimiter: str | None
) -> Iterator[Row]:
    """Yield the rows; a row's number is its place after the header, and its id is in the column
    "id", if any. Without a template, the prompts are in the column "prompt".

    Raises UsageError, before the first row, if the header lacks a column.
    """
    template = template or RowTemplate.parse(f"{{{PROMPT}}}")
    records = read_records(stream, delimiter)
    header = next(records, None)
    if header is None:
        return
    if isinstance(header, RowError):
        raise InputError(f"the header of the table is not readable: {header}")
    columns = _columns(header, template)
    for number, record in enumerate(records, 1):
        yield _row(number, record, len(header), columns, template)


def read_records(stream: BinaryIO, delimiter: str | None) -> Iterator[Record]:
    """Yield the records, the header first; an error for one that is malformed. Blank lines and
    records of empty cells are skipped. The `delimiter` is by default the comma, semicolon or tab
    that the header has most of. Raises InputError if the header is too long."""
    lines = _Lines(stream)
    delimiter = delimiter or lines.guess_delimiter()
    csv.field_size_limit(MAX_LINE_BYTES)
    while True:
        # An error leaves the reader within the record: begin again at the next line.
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            for record in reader:
                lines.begin_record()
                if any(map(str.strip, record)):
                    yield record
            return
        except csv.Error as error:
            lines.begin_record()
            yield RowError(f"malformed CSV: {error}")
        except _TooLong:
            lines.begin_record()
            yield RowError(f"the record is {TOO_LONG}: is a quote not closed?")


class _Lines:
    """The lines as text, of which one record has a limited number of bytes. Bytes that are not
    UTF-8 become surrogates, which the fields are checked for."""

    def __init__(self, stream: BinaryIO) -> None:
        self._lines = bounded_lines(stream)
        self._first: str | None = None
        self._record_bytes = 0

    def guess_delimiter(self) -> str:
        try:
            first = next(self, "")
        except _TooLong:
            raise InputError(f"the header of the table is {TOO_LONG}") from None
        self._first = first
        outside = "".join(first.split('"')[::2])
        return max(DELIMITERS, key=outside.count)

    def begin_record(self) -> None:
        self._record_bytes = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        _, line = next(self._lines)
        if line is None:
            raise _TooLong
        self._record_bytes += len(line)
        if self._record_bytes > MAX_LINE_BYTES:
            raise _TooLong
        return line.decode("utf-8", "surrogateescape")


def _columns(header: Sequence[str], template: RowTemplate) -> dict[str, int]:
    """The places of the columns that are read, by name."""
    names = [name.strip() for name in header]
    try:
        _check_utf8(header)
    except RowError as error:
        raise InputError(f"the header of the table is {error}") from error
    for name in (*template.fields, ID):
        if names.count(name) > 1:
            raise UsageError(f"the table has two columns named {shortened(name)}")
    missing = [name for name in template.fields if name not in names]
    if missing:
        known = ", ".join(shortened(name) for name in names[:20])
        raise UsageError(
            f"the table has no column {shortened(missing[0])}, only {known}: use them in ",
            Field("template"),
        )
    wanted = (*template.fields, *([ID] if ID in names else []))
    return {name: names.index(name) for name in wanted}


def _row(
    number: int, record: Record, width: int, columns: dict[str, int], template: RowTemplate
) -> Row:
    row = Row(number, None)
    try:
        if isinstance(record, RowError):
            raise record
        if len(record) != width:
            raise RowError(f"{count(len(record), 'cell')}, but the header has {width}")
        given = record[columns[ID]] if ID in columns else ""
        _check_utf8([given])
        row = Row(number, _id(given) if given else number)
        _check_utf8(record)
        values = {name: record[columns[name]] for name in template.fields}
        for name, value in values.items():
            check_unicode(f"column {shortened(name)}", value)
        return Row(number, row.id, prompt=check_text("prompt", template.fill(values)))
    except RowError as error:
        return row.broken(error)


def _check_utf8(record: Sequence[str]) -> None:
    for cell in record:
        for character in cell:
            if "\udc80" <= character <= "\udcff":
                byte = ord(character) - 0xDC00
                raise RowError(f"not UTF-8: invalid byte 0x{byte:02X}; convert the file to UTF-8")


def _id(cell: str) -> str:
    """Cells are text: an id 7 in a table is not the number 7."""
    check_id(cell)
    return cell
