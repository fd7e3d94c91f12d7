"""Parse durations, times, sizes and windows as people write them."""

import re
from datetime import date, datetime, time, timedelta
from typing import Literal

# Help imports this file: patterns are compiled, and `decimal` imported, only when needed.
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = rf"(?:{_NUMBER}d)?\s*(?:{_NUMBER}h)?\s*(?:{_NUMBER}m)?\s*(?:{_NUMBER}s)?"
_SECONDS = (86_400, 3_600, 60, 1)
_MAX_DAYS = 36_500

_SIZE = rf"{_NUMBER}\s*([kmgt]?i?b)?"
_FACTORS = {"": 1, "b": 1} | {
    f"{prefix}{end}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for end, base in (("b", 1000), ("ib", 1024))
}

_TIME = r"(?:([0-9]{4})-([0-9]{2})-([0-9]{2})[ T])?([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?"


def parse_duration_s(text: str) -> float:
    """Seconds in a duration such as 8h, 90m, 1h30m, 45s or 2d.

    Raises ValueError if it is malformed, zero or without a unit.
    """
    from decimal import Decimal

    match = re.fullmatch(_DURATION, text.strip(), re.IGNORECASE)
    numbers = match.groups() if match else ()
    seconds = sum(
        Decimal(number) * each
        for number, each in zip(numbers, _SECONDS, strict=False)
        if number is not None
    )
    if not 0 < seconds <= _MAX_DAYS * 86_400:
        raise ValueError(
            "must be a positive duration with a unit (d, h, m or s), such as 8h or 1h30m, got "
            f"{text!r}"
        )
    return float(seconds)


def parse_deadline(text: str, now: datetime | None = None) -> datetime:
    """The time-zone-aware moment of a local time such as 07:00, 23:59:30 or 2026-11-22 07:00.

    A time without a date means its next occurrence after `now`, which must be time-zone-aware.
    Raises ValueError if the time is malformed or past.
    """
    now = now or datetime.now().astimezone()
    try:
        moments = _moments(text.strip(), now.astimezone().date())
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


def _moments(text: str, today: date) -> list[datetime]:
    """What `text` can mean: today's or tomorrow's time if it has no date."""
    match = re.fullmatch(_TIME, text)
    if match is None:
        raise ValueError(text)
    year, month, day, hour, minute, second = (int(n) for n in match.groups("0"))
    days = [date(year, month, day)] if match[1] else [today, today + timedelta(days=1)]
    clock = time(hour, minute, second)
    return [datetime.combine(each, clock).astimezone() for each in days]


def parse_bytes(text: str) -> int:
    """Bytes in a size such as 4096, 100MB (10^6 each) or 50MiB (2^20 each).

    Raises ValueError if it is malformed or less than one byte.
    """
    from decimal import Decimal

    match = re.fullmatch(_SIZE, text.strip(), re.IGNORECASE)
    number, unit = match.groups(default="") if match else ("0", "")
    size = int(Decimal(number) * _FACTORS[unit.lower()])
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
