"""The options of a long run as they are written, as fields of `Overnight`."""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from mlxchat.cli.amounts import parse_bytes, parse_deadline, parse_duration_s

OVERNIGHT_OPTIONS = (
    *("output", "rotate", "checkpoint", "checkpoint_every", "until", "lasting"),
    *("max_bytes", "on_loop", "metrics"),
)

# The field's name, and what the text means, for those that are not already what the field holds.
_MEANINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "until": ("until", lambda text: parse_deadline(text, "--until", datetime.now().astimezone())),
    "lasting": ("lasting_s", lambda text: parse_duration_s(text, "--for")),
    "max_bytes": ("max_bytes", lambda text: parse_bytes(text, "--max-bytes")),
    "rotate": ("rotate_bytes", lambda text: parse_bytes(text, "--rotate")),
    "output": ("output", Path),
    "checkpoint": ("checkpoint", Path),
    "metrics": ("metrics", Path),
}


def overnight_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Raises UsageError naming the option whose text means nothing."""
    values: dict[str, Any] = {}
    for name, given in options.items():
        field, parse = _MEANINGS.get(name, (name, lambda value: value))
        values[field] = None if given is None else parse(given)
    return values
