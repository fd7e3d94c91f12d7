"""Places in a JSON document, in the spelling of error messages: `$.properties.name`."""

import re
from typing import Any

Path = tuple[str | int, ...]

_PLAIN = re.compile(r"[A-Za-z_$][\w$-]*")


def spell(path: Path) -> str:
    return "$" + "".join(map(_step, path))


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN.fullmatch(step) and step.isascii() else f"[{step[:60]!r}]"


def shorten(value: Any) -> str:
    """A value in a message, in one short line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
