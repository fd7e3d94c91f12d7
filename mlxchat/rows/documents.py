"""Rows of which each is a line of text, or a whole file."""

import codecs
import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from mlxchat.errors import UsageError
from mlxchat.files import open_to_read
from mlxchat.row_template import RowTemplate
from mlxchat.rows.fields import check_id, check_text, shortened
from mlxchat.rows.lines import MAX_LINE_BYTES, TOO_LONG, bounded_lines
from mlxchat.rows.row import Row, RowError
from mlxchat.text.documents import UTF16_MARKS
from mlxchat.wording import Field

# The fields that a template can have.
LINE_FIELDS: Sequence[str] = ("text", "line")
FILE_FIELDS: Sequence[str] = ("text", "file")


def check_fields(template: RowTemplate | None, known: Sequence[str]) -> None:
    """Raise UsageError for a field that such rows do not have."""
    wrong = [name for name in (template.fields if template else ()) if name not in known]
    if wrong:
        known_fields = " and ".join(f"{{{name}}}" for name in known)
        raise UsageError(
            Field("template"), f" has a field {shortened(wrong[0])}; rows have {known_fields}"
        )


def line_rows(stream: BinaryIO, template: RowTemplate | None) -> Iterator[Row]:
    """Yield a row for each line that is not blank."""
    check_fields(template, LINE_FIELDS)
    for number, line in bounded_lines(stream):
        if line is None or line.strip():
            yield _line_row(number, line, template)


def _line_row(number: int, line: bytes | None, template: RowTemplate | None) -> Row:
    row = Row(number, number)
    try:
        if line is None:
            raise RowError(f"the line is {TOO_LONG}")
        text = _decoded(line.rstrip(b"\r\n"))
        values = dict.fromkeys(LINE_FIELDS, text)
        prompt = text if template is None else template.fill(values)
        return Row(number, number, prompt=check_text("prompt", prompt))
    except RowError as error:
        return row.broken(error)


def find_files(pattern: str, output: Path | None = None) -> list[str]:
    """The files that match the pattern, sorted, without directories and the `output` of an earlier
    run. Raises UsageError if nothing matches."""
    found = sorted(
        each
        for each in glob.iglob(str(Path(pattern).expanduser()), recursive=True)  # noqa: PTH207
        if not Path(each).is_dir() and not (output is not None and _is_same(each, output))
    )
    if not found:
        raise UsageError(Field("pattern"), f": no file matches {pattern}")
    return found


def _is_same(path: str, other: Path) -> bool:
    try:
        return other.samefile(path)
    except OSError:
        return False


def file_rows(paths: Sequence[str], template: RowTemplate | None) -> Iterator[Row]:
    """Yield a row for each file, with its path as the id."""
    check_fields(template, FILE_FIELDS)
    for number, path in enumerate(paths, 1):
        yield _file_row(number, path, template)


def _file_row(number: int, path: str, template: RowTemplate | None) -> Row:
    row = Row(number, None)
    try:
        row = Row(number, check_id(path))
        text = _read(path)
        prompt = text if template is None else template.fill({"text": text, "file": path})
        return Row(number, path, prompt=check_text("prompt", prompt))
    except RowError as error:
        return row.broken(error)


def _read(path: str) -> str:
    try:
        with open_to_read(Path(path)) as file:
            data = file.read(MAX_LINE_BYTES + 1)
    except OSError as error:
        raise RowError(f"cannot read the file: {error.strerror or error}") from error
    if len(data) > MAX_LINE_BYTES:
        raise RowError(f"the file is {TOO_LONG}")
    if data.startswith(UTF16_MARKS):
        raise RowError("the file is UTF-16: convert it to UTF-8 first")
    return check_text("the file", _decoded(data.removeprefix(codecs.BOM_UTF8)))


def _decoded(data: bytes) -> str:
    if (position := data.find(b"\0")) >= 0:
        raise RowError(f"binary: a NUL at byte {position:,}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: invalid byte at position {error.start:,}") from error
