"""Durations and times of day, as people write them."""

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from mlxchat.request.written import parse_deadline, parse_duration_s


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process's time zone."""
    # Rules instead of names, so that no time zone database is needed.
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_duration_is_numbers_with_units() -> None:
    for text, seconds in ("45s", 45), ("1d2h3m4s", 93_784), (" 8H ", 28_800), ("1.5h", 5_400):
        assert parse_duration_s(text) == seconds


INVALID = {
    "a positive duration with a unit (d, h, m or s), such as 8h or 1h30m": (
        parse_duration_s,
        *("", "8", "h", "0h", "-8h", "8x", "30m1h", "1h30", "1,5h", "8h8h", "٨h", "1e3s"),
        "99999999d",
    ),
    "a local time such as 07:00 or '2026-11-22 07:00'": (
        lambda text: parse_deadline(text, datetime.fromisoformat(NOON)),
        *("", "7", "7:0", "24:00", "12:60", "12:00:60", "07.00", "7pm", "tomorrow", "٠٧:٠٠"),
        *("2026-02-30 07:00", "0000-01-01 07:00", "26-11-22 07:00", "2026-11-22  07:00"),
    ),
}


@pytest.mark.parametrize("expected", INVALID)
def test_an_invalid_amount_or_time_is_refused_with_an_example(expected: str) -> None:
    parse, *texts = INVALID[expected]
    for text in texts:
        with pytest.raises(ValueError) as raised:
            parse(text)
        assert str(raised.value) == f"must be {expected}, got {text!r}"


NOON = "2026-11-21T12:00:00+01:00"


@pytest.mark.parametrize(
    ("text", "now", "deadline"),
    [
        ("12:01", NOON, "2026-11-21T12:01:00+01:00"),
        ("07:00", NOON, "2026-11-22T07:00:00+01:00"),
        (" 0:00 ", NOON, "2026-11-22T00:00:00+01:00"),
        ("12:00", NOON, "2026-11-22T12:00:00+01:00"),
        ("2026-11-22 07:00", NOON, "2026-11-22T07:00:00+01:00"),
        # The clocks are changed; a time that comes twice means its next occurrence.
        ("07:00", "2027-03-27T23:00:00+01:00", "2027-03-28T07:00:00+02:00"),
        ("02:30", "2027-10-31T00:00:00+02:00", "2027-10-31T02:30:00+02:00"),
        ("02:30", "2027-10-31T02:45:00+01:00", "2027-11-01T02:30:00+01:00"),
    ],
)
def test_a_time_is_the_next_one_and_a_date_is_kept(text: str, now: str, deadline: str) -> None:
    assert parse_deadline(text, datetime.fromisoformat(now)) == datetime.fromisoformat(deadline)
