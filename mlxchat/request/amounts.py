"""Parse durations, times, sizes and windows as people write them."""

import re
from datetime import datetime, time, timedelta
from typing import Literal

# Help imports this file: patterns are compiled only when needed.
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = rf"(?:{_NUMBER}d)?\s*(?:{_NUMBER}h)?\s*(?:{_NUMBER}m)?\s*(?:{_NUMBER}s)?"
_SECONDS = (86_400, 3_600, 60, 1)
_MAX_DAYS = 36_500
_SIZE = rf"{_NUMBER}\s*(?:([kmgt]?)(i?)b)?"


def parse_duration_s(text: str) -> float:
    """Seconds in a duration such as 8h, 90m, 1h30m, 45s or 2d.

    Raises ValueError if it is malformed, zero or without a unit.
    """
    match = re.fullmatch(_DURATION, text.strip(), re.IGNORECASE)
    numbers = match.groups("0") if match else ()
    seconds = sum(float(n) * unit for n, unit in zip(numbers, _SECONDS, strict=False))
    if not 0 < seconds <= _MAX_DAYS * 86_400:
        raise ValueError(
            "must be a positive duration with a unit (d, h, m or s), such as 8h or 1h30m, got "
            f"{text!r}"
        )
    return seconds


def parse_deadline(text: str, now: datetime | None = None) -> datetime:
    """The time-zone-aware moment of a local time such as 07:00, 23:59:30 or 2026-11-22 07:00.

    A time without a date means its next occurrence after `now`, which must be time-zone-aware.
    Raises ValueError if the time is malformed or past.
    """
    now = now or datetime.now().astimezone()
    written, today = text.strip(), now.astimezone().date()
    try:
        if ":" in written[:3]:
            clock = time.fromisoformat(written.rjust(5, "0"))
            days = (today, today + timedelta(days=1))
            moments = [datetime.combine(day, clock).astimezone() for day in days]
        else:
            moments = [datetime.fromisoformat(written).astimezone()]
    except (ValueError, OverflowError):
        raise ValueError(
            f"must be a local time such as 07:00 or '2026-11-22 07:00', got {text!r}"
        ) from None
    later = [moment for moment in moments if moment > now]
    if not later:
        raise ValueError(
            f"must be in the future, got {text!r} (without a date, a time means its next "
            "occurrence)"
        )
    return min(later)


def parse_bytes(text: str) -> int:
    """Bytes in a size such as 4096, 100MB (10^6 each) or 50MiB (2^20 each).

    Raises ValueError if it is malformed or less than one byte.
    """
    match = re.fullmatch(_SIZE, text.strip(), re.IGNORECASE)
    number, prefix, binary = match.groups("") if match else ("0", "", "")
    power = "kmgt".index(prefix.lower()) + 1 if prefix else 0
    size = int(float(number) * (1024 if binary else 1000) ** power)
    if size < 1:
        raise ValueError(
            f"must be a size in bytes, or with a unit such as 100MB or 50MiB, got {text!r}"
        )
    return size


def parse_window(text: str) -> int | Literal["auto"] | None:
    """Tokens in a window; None for "none", and "auto" as it is. Raises ValueError otherwise."""
    return None if text == "none" else _number_or("auto, none or a number of tokens", text)


def parse_number_or_auto(text: str) -> int | Literal["auto"]:
    """A whole number, or "auto" as it is. Raises ValueError otherwise."""
    return _number_or("auto or a whole number", text)


def _number_or(wanted: str, text: str) -> int | Literal["auto"]:
    try:
        return "auto" if text == "auto" else int(text)
    except ValueError:
        raise ValueError(f"must be {wanted}, got {text!r}") from None
