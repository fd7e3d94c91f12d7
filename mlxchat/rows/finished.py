"""Reads the output of an earlier run: which rows are finished, and how much of the file is good.

Memory is bounded by the longest line, and by two sets of hashes, about 100 bytes per row.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from mlxchat.errors import OutputError
from mlxchat.rows.results import ROW_ID, Result
from mlxchat.rows.row import key_of

# A file with longer lines is not the output of a batch.
MAX_RESULT_BYTES = 256_000_000

# How a line begins.
BEGINNING = b'{"id": '

# How many damaged lines are named.
NAMED = 3


@dataclass
class Finished:
    """`rows` are the keys of answered rows, `reports` those of failed rows together with their
    errors, `damaged` the first damaged lines.

    The file is good up to `good_bytes`, and `lacks_end` means that a line end is missing there.
    """

    rows: set[bytes] = field(default_factory=set[bytes])
    reports: set[bytes] = field(default_factory=set[bytes])
    damaged: list[int] = field(default_factory=list[int])
    damaged_lines: int = 0
    good_bytes: int = 0
    lacks_end: bool = False

    def has_reported(self, result: Result) -> bool:
        """Whether the output has this very error already."""
        assert result.error is not None
        return _report(result.row.key, result.error) in self.reports

    def notice(self, path: Path) -> str | None:
        """What to report about damaged lines, if any."""
        if not self.damaged_lines:
            return None
        numbers = ", ".join(f"{number:,}" for number in self.damaged)
        more = ", …" if self.damaged_lines > len(self.damaged) else ""
        if self.damaged_lines == 1:
            return f"{path}: line {numbers} is damaged, and stays; its row runs again"
        return f"{path}: lines {numbers}{more} are damaged, and stay; their rows run again"


def read_finished(file: BinaryIO, path: Path) -> Finished:
    """Read the lines of an output. Raises OutputError if the file is something else, which a
    batch must not change, and OSError."""
    finished = Finished()
    good_lines, cut_short = 0, b""
    for number, line in enumerate(_lines(file, path), 1):
        record = _parse(line)
        if record is None and not line.endswith(b"\n"):
            cut_short = line
            break
        is_good = record is not None and _take(record, finished)
        if not is_good and line.strip():
            finished.damaged_lines += 1
            finished.damaged += [number] if len(finished.damaged) < NAMED else []
        good_lines += is_good
        finished.good_bytes += len(line)
        finished.lacks_end = not line.endswith(b"\n")
    is_ours = cut_short.startswith(BEGINNING[: len(cut_short)])
    if not good_lines and (finished.damaged_lines or (cut_short and not is_ours)):
        raise OutputError(f"{path} is not the output of a batch: choose another name")
    return finished


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    while line := file.readline(MAX_RESULT_BYTES + 1):
        if len(line) > MAX_RESULT_BYTES:
            raise OutputError(f"{path} is not the output of a batch: a line is too long")
        yield line


def _parse(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None if it is not whole."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else {}


def _take(record: dict[str, Any], finished: Finished) -> bool:
    """Add the row of a line; return whether it is a result."""
    try:
        found = _read(record)
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    if found is None:
        return False
    key, error = found
    if error is None:
        finished.rows.add(key)
    else:
        finished.reports.add(_report(key, error))
        # Perhaps the id is only the row's number.
        finished.reports.add(_report(key_of(None, record.get("row")), error))
    return True


def _read(record: dict[str, Any]) -> tuple[bytes, str | None] | None:
    """The key of a result, and its error if it failed; None if it is no result."""
    if "custom_id" in record:
        id_, number = record["custom_id"], int(record["id"].removeprefix(ROW_ID))
        error = record["error"]
        if error is None and "body" not in record["response"]:
            return None
        message = None if error is None else str(error["message"])
    else:
        id_, number, message = record["id"], record.get("row"), record.get("error")
        if message is None and "finish_reason" not in record:
            return None
        if number is not None and message is None:
            id_ = None
    if isinstance(id_, bool) or not isinstance(id_, int | str | None):
        return None
    if id_ is None and not isinstance(number, int):
        return None
    return key_of(id_, number), None if message is None else str(message)


def _report(key: bytes, error: str) -> bytes:
    return blake2b(key + error.encode("utf-8", "replace"), digest_size=16).digest()
