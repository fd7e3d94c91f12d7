"""Append-only files, by pieces or by lines. If a crash leaves part of a piece, the next append
removes it. The reader knows how much of a file is good."""

import errno
import json
import math
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlxchat.files.disk import force_to_disk, open_file, sync_directory, write_all


class AppendFile:
    """The file at `path`, now `size_bytes` long. It is opened for each piece and never created
    again: a missing file is an error."""

    def __init__(self, path: Path, size_bytes: int = 0) -> None:
        self.path = path
        self._max_bytes = size_bytes

    def create(self) -> None:
        """Create it, empty and private to its owner. Raises OSError, also if it exists."""
        os.close(open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        sync_directory(self.path.parent)

    def append(self, good_bytes: int, piece: bytes, unforced: bytes = b"") -> OSError | None:
        """Write `piece` after the first `good_bytes` and force it to the disk.

        Raises OSError if it could not be written. Any part of it that was written lies after the
        good bytes, and the next append removes it. Nothing else is ever cut off: if another
        program has changed the file, this raises OSError and leaves it as it is.

        Returns an OSError if the piece was written but may never reach the disk. If so, pass the
        same bytes, the last of the good ones, as `unforced` with the next piece: only bytes that
        are written again are forced again. Rewriting them in place does no harm.
        """
        descriptor = open_file(self.path, os.O_WRONLY)
        try:
            self._cut(descriptor, good_bytes)
            # Set this before writing, so that a partial write is recognized whenever it stops.
            self._max_bytes = good_bytes + len(piece)
            try:
                write_all(descriptor, unforced + piece, good_bytes - len(unforced))
            except BaseException:
                with suppress(OSError):
                    self._cut(descriptor, good_bytes)
                raise
            try:
                force_to_disk(descriptor)
            except OSError as error:
                return error
            return None
        finally:
            os.close(descriptor)

    def _cut(self, descriptor: int, good_bytes: int) -> None:
        size = os.fstat(descriptor).st_size
        if not good_bytes <= size <= self._max_bytes:
            raise OSError(errno.ESTALE, "another program has changed it")
        if size > good_bytes:
            os.ftruncate(descriptor, good_bytes)


def append_line(path: Path, line: str) -> None:
    """Append `line` to `path`, creating the file if necessary. Starts a new line if the last one
    was cut short. Raises OSError."""
    descriptor = open_to_append(path)
    try:
        data = f"{line}\n".encode()
        write_all(descriptor, b"\n" + data if _ends_within_a_line(descriptor) else data)
    finally:
        os.close(descriptor)


def json_line(record: dict[str, Any]) -> str:
    """A JSON object without a line end. Infinity and NaN, which JSON does not have, become null."""
    return json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def open_to_append(path: Path) -> int:
    """Open a file for appending, creating it if necessary; return its descriptor. Raises
    OSError."""
    # Without O_NONBLOCK, opening a pipe that has no reader would block.
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)


def _ends_within_a_line(descriptor: int) -> bool:
    """Whether the last line was cut short, by a full disk or a kill."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return False
    return os.pread(descriptor, 1, status.st_size - 1) != b"\n"
