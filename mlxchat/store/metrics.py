"""A file of statistics about a long run: JSON objects, one per line, appended at intervals.

The caller decides what they contain. Failing to write the file never ends the run.
"""

from datetime import datetime
from pathlib import Path
from typing import Any

from mlxchat.files import append_line, json_line

INTERVAL_S = 60.0


class MetricsFile:
    """Appends lines to a file. Reopens it for each, so that it may be moved away in between."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written_s: float | None = None
        self._reported = False

    def due(self, now_s: float) -> bool:
        """Whether a line is due, by a monotonic clock: immediately, then at each interval after
        the last line.
        """
        return self._written_s is None or now_s - self._written_s >= INTERVAL_S

    def write(
        self, facts: dict[str, Any], now_s: float, time: datetime | None = None
    ) -> str | None:
        """Append `facts` after the local time (`time`, for tests), in ISO 8601 with its offset.

        Infinity and NaN, which JSON does not have, become null. Returns the error message the
        first time that writing fails, else None.
        """
        self._written_s = now_s
        time = time or datetime.now().astimezone()
        line = {"time": time.isoformat(timespec="seconds")} | facts
        try:
            append_line(self._path, json_line(line))
        except OSError as error:
            if not self._reported:
                self._reported = True
                return f"cannot write {self._path}: {error.strerror or error}"
        return None
