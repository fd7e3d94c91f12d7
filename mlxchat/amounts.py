"""Amounts of time, bytes and tokens as people write them."""

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal

# Compiled, as `decimal` is imported, when needed: help imports this file and needs neither.
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = rf"(?:{_NUMBER}d)?\s*(?:{_NUMBER}h)?\s*(?:{_NUMBER}m)?\s*(?:{_NUMBER}s)?"
_SECONDS = (86_400, 3_600, 60, 1)
_MOST_DAYS = 36_500

_SIZE = rf"{_NUMBER}\s*([kmgt]?i?b)?"
_FACTORS = {"": 1, "b": 1} | {
    f"{prefix}{end}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for end, base in (("b", 1000), ("ib", 1024))
}

_TIME = r"(?:([0-9]{4})-([0-9]{2})-([0-9]{2})[ T])?([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?"


def parse_duration_s(text: str) -> float:
    """Seconds of a duration such as 8h, 90m, 1h30m, 45s or 2d.

    Raises ValueError if it is none, or nothing, or has no unit.
    """
    from decimal import Decimal

    match = re.fullmatch(_DURATION, text.strip(), re.IGNORECASE)
    numbers = match.groups() if match else ()
    seconds = sum(
        Decimal(number) * each
        for number, each in zip(numbers, _SECONDS, strict=False)
        if number is not None
    )
    if not 0 < seconds <= _MOST_DAYS * 86_400:
        raise ValueError(
            f"must be a duration above 0 with its unit, d, h, m or s, got {text!r}: for example 8h "
            "or 1h30m"
        )
    return float(seconds)


def parse_deadline(text: str, now: datetime | None = None) -> datetime:
    """The moment of a local time such as 07:00, 23:59:30 or 2026-11-22 07:00, with its time zone.

    A time alone is the next such time after `now`, which must know its time zone. When the clocks
    go back it is the earliest such time that is still to come; when they go forward, a time that
    is left out is as long after midnight as if they did not. Raises ValueError if it is no time, or
    has passed.
    """
    now = now or datetime.now().astimezone()
    try:
        walls = _wall_times(text.strip(), now.astimezone().date())
        moments = [moment for wall in walls for moment in _moments(wall)]
    except (ValueError, OverflowError):
        raise ValueError(
            f"must be a local time, got {text!r}: for example 07:00 or '2026-11-22 07:00'"
        ) from None
    later = [moment for moment in moments if moment > now]
    if not later:
        raise ValueError(
            f"must be in the future, got {text!r}: without a date, such as 07:00, it is the next "
            "such time"
        )
    return min(later)


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 4096, 100MB (10^6 each) or 50MiB (2^20 each).

    Raises ValueError if it is none, or less than one byte.
    """
    from decimal import Decimal

    match = re.fullmatch(_SIZE, text.strip(), re.IGNORECASE)
    number, unit = match.groups(default="") if match else ("0", "")
    size = int(Decimal(number) * _FACTORS[unit.lower()])
    if size < 1:
        raise ValueError(
            f"must be a number of bytes or a size with its unit, got {text!r}: for example 100MB "
            "or 50MiB"
        )
    return size


def parse_window(text: str) -> int | Literal["auto"] | None:
    """Tokens of a window; None for "none", and "auto". Raises ValueError for anything else."""
    if text == "auto":
        return "auto"
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"must be auto, none or a number of tokens, got {text!r}") from None


def _wall_times(text: str, today: date) -> list[datetime]:
    """What the clocks may show then: today or tomorrow if no date is given."""
    match = re.fullmatch(_TIME, text)
    if match is None:
        raise ValueError(text)
    year, month, day, hour, minute, second = (int(n) for n in match.groups("0"))
    clock = time(hour, minute, second)
    days = [date(year, month, day)] if match[1] else [today, today + timedelta(days=1)]
    return [datetime.combine(each, clock) for each in days]


def _moments(wall: datetime) -> list[datetime]:
    """When the clocks show `wall`: twice if they go back; as if they stood, if forward."""
    # By way of the timestamp: `astimezone` itself puts a time that is skipped before the change.
    stamps = [wall.replace(fold=fold).timestamp() for fold in (0, 1)]
    both = [datetime.fromtimestamp(stamp, UTC).astimezone() for stamp in stamps]
    shown = [moment for moment in both if moment.replace(tzinfo=None) == wall]
    return shown or both[:1]
