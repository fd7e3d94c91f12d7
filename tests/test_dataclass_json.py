"""What is stored as JSON is read back as it was, or refused by the name of the field."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from mlxchat.errors import UsageError
from mlxchat.request import Setup
from mlxchat.store.checkpoint import from_json, to_json


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    floats: tuple[float, ...] = ()
    colour: Colour | None = None


@dataclass(frozen=True)
class Outer:
    path: Path
    pair: tuple[int, str]
    inner: Inner = field(default_factory=Inner)
    several: tuple[Inner, ...] = ()
    window: int | Literal["auto"] | None = None
    until: datetime | None = None
    switches: Mapping[str, bool | None] = field(default_factory=dict[str, bool | None])
    anything: dict[str, Any] = field(default_factory=dict[str, Any])
    number: float | int = 1


WHOLE = Outer(
    Path("/a/ü"),
    (1, "ü\n\u2028"),
    Inner((1.5, math.inf, -math.inf), Colour.BLUE),
    (Inner(), Inner((0.1,), Colour.RED)),
    "auto",
    datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    {"quiet": True, "stats": None},
    {"list": [1, {"deep": None}], "text": "inf"},
    2,
)


def stored(value: Any) -> Any:
    return json.loads(json.dumps(to_json(value)))


def test_every_kind_of_field_is_read_back_as_it_was() -> None:
    again = from_json(Outer, stored(WHOLE))
    assert again == WHOLE
    assert type(again.number) is int
    assert math.isnan(from_json(Inner, stored(Inner((math.nan,)))).floats[0])


@pytest.mark.parametrize(
    "change",
    [{"anything": {"a": (1,)}}, {"switches": {1: True}}, {"path": Path("/not/UTF-8/\udcff")}],
)
def test_what_would_not_be_read_back_the_same_is_not_stored(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be stored"):
        to_json(replace(WHOLE, **change))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"pair": [1]}, "pair.1: Field required"),
        ({"inner": {"colour": "green"}}, "inner.colour: Input should be 'red' or 'blue'"),
        ({"several": [{"size": 1}]}, "unknown field several.0.size"),
        ({"window": True}, "window.int: Input should be a valid integer"),
        ({"other": 1}, "unknown field other"),
    ],
)
def test_an_invalid_or_unknown_field_is_named(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{complaint}"):
        from_json(Outer, stored(WHOLE) | change)


def test_a_missing_field_has_its_default_or_is_named() -> None:
    whole = stored(WHOLE)
    del whole["window"]
    assert from_json(Outer, whole) == replace(WHOLE, window=None)
    del whole["path"]
    with pytest.raises(ValueError, match="path: Field required"):
        from_json(Outer, whole)
    with pytest.raises(ValueError, match="Input should be an object"):
        from_json(Outer, 3)


def test_what_an_option_must_be_is_checked_as_well() -> None:
    with pytest.raises(ValueError, match=r"^--max-kv-size must be"):
        from_json(Setup, to_json(Setup(window=64)) | {"window": 0})
