"""A file of figures about a long run: one JSON object a line, appended now and then.

What the figures are is the caller's business. A file that cannot be written is never worth ending
the run for.
"""

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

from mlxchat.files import append_line

INTERVAL_S = 60.0


class MetricsFile:
    """Appends lines to a file, opened anew for each, so that it may be moved away meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written_s: float | None = None
        self._reported = False

    def due(self, now_s: float) -> bool:
        """Whether it is time for a line, by a clock that never goes back: at once, then each
        interval after the latest line.
        """
        return self._written_s is None or now_s - self._written_s >= INTERVAL_S

    def write(
        self, facts: dict[str, Any], now_s: float, time: datetime | None = None
    ) -> str | None:
        """Append `facts` behind the local time (`time`, for tests), as ISO 8601 with its offset.

        Numbers that JSON does not have, infinities and NaN, become null. Returns what went wrong
        the first time that something does, and None otherwise.
        """
        self._written_s = now_s
        time = time or datetime.now().astimezone()
        line = {"time": time.isoformat(timespec="seconds")}
        line |= {name: _for_json(value) for name, value in facts.items()}
        try:
            append_line(self._path, json.dumps(line, ensure_ascii=False, allow_nan=False))
        except OSError as error:
            if not self._reported:
                self._reported = True
                return f"cannot write {self._path}: {error.strerror or error}"
        return None


def _for_json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
