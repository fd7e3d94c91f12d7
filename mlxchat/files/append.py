"""Files of lines that only grow."""

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from mlxchat.files.disk import write_all


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
