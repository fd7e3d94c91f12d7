"""Rows of which each is a line of text, a record of a CSV table, or a whole file."""

import csv
import glob
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from mlxchat.errors import InputError, UsageError
from mlxchat.files import open_to_read
from mlxchat.request.batch import RowTemplate
from mlxchat.rows.row import MAX_CHARS, TOO_LONG, Row, RowError, check_fields, check_text, shortened
from mlxchat.units import count

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
    texts = chain([first], lines)
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
