"""Numbers and texts as people read them, lines of JSON, and the callbacks that report progress."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

# Called with the amount done and the total, in the operation's own unit.
Progress = Callable[[int, int], None]

# Called with one line for the user.
Notify = Callable[[str], None]

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")

# JSON leaves these as they are. Many readers, such as Python's `splitlines`, treat some as line
# endings, and terminals obey others.
_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}


def _log(level: str, text: str) -> None:
    # Takes longer to import than `--help` to show.
    import logging

    getattr(logging.getLogger("mlxchat"), level)(text)


def _unseen(*_: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


@dataclass(frozen=True, slots=True)
class Observer:
    """Where an application's messages and progress go; by default, messages are logged.

    `warn` gets messages that change the meaning of the output, `note` those worth knowing. `ask`
    answers yes or no before a download; without it there is no question. `waiting` is
    a context with a text for long operations, `counting` one with a description and a unit.
    """

    warn: Notify = lambda text: _log("warning", text)
    note: Notify = lambda text: _log("info", text)
    ask: Callable[[str], bool] | None = None
    show_progress: bool = False
    waiting: Callable[[str], AbstractContextManager[object]] = _unseen
    counting: Callable[[str, str], AbstractContextManager[Progress]] = _unseen


def format_bytes(size_bytes: float) -> str:
    """Format bytes with three digits, in powers of 1000 as disks and the Hub do: 2.26 GB."""
    value, unit = float(size_bytes), 0
    while value >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    if unit == 0:
        return f"{value:.0f} B"
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f} {_BYTE_UNITS[unit]}"


def count(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: "1 turn", "1,200 turns"; a `plural` if adding an s is not enough."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def and_rate(tokens_per_s: float) -> str:
    """A rate to append to a message: ", 41.2 tok/s"; empty if it is 0."""
    return f", {tokens_per_s:,.1f} tok/s" if tokens_per_s else ""


def beginning(text: str, max_chars: int) -> str:
    """The text, or its first `max_chars` characters and its total length."""
    return text if len(text) <= max_chars else f"{text[:max_chars]} … ({len(text):,} characters)"


def json_line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).translate(_ESCAPED) + "\n"


def printable(text: str) -> str:
    """The text on one line, with escapes for what cannot be printed."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
