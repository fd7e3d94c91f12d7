"""What is stored as JSON is read back as it was, or refused by the name of the field."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from mlxchat.errors import UsageError
from mlxchat.request import Setup
from mlxchat.settings import OnLoop
from mlxchat.store.checkpoint import from_json, to_json


@dataclass(frozen=True)
class Inner:
    floats: tuple[float, ...] = ()
    on_loop: OnLoop | None = None


@dataclass(frozen=True)
class Outer:
    path: Path
    pair: tuple[int, str] = (1, "ü\n\u2028")
    several: tuple[Inner, ...] = (Inner(), Inner((0.1, math.inf, -math.inf), OnLoop.STOP))
    window: int | Literal["auto"] | None = "auto"
    until: datetime | None = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    switches: Mapping[str, bool | None] = field(default_factory=lambda: {"a": True, "b": None})
    anything: dict[str, Any] = field(default_factory=lambda: {"a": [1, {"b": None}], "c": "inf"})
    number: float | int = 2


WHOLE = Outer(Path("/a/ü"))


def stored(value: Any) -> Any:
    return json.loads(json.dumps(to_json(value)))


def test_every_kind_of_field_is_read_back_as_it_was_or_has_its_default() -> None:
    again = from_json(Outer, stored(WHOLE))
    assert again == WHOLE
    assert type(again.number) is int
    assert math.isnan(from_json(Inner, stored(Inner((math.nan,)))).floats[0])
    assert from_json(Outer, {"path": "/a/ü"}) == WHOLE


@pytest.mark.parametrize(
    "change",
    [{"anything": {"a": (1,)}}, {"switches": {1: True}}, {"path": Path("/not/UTF-8/\udcff")}],
)
def test_what_would_not_be_read_back_the_same_is_not_stored(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be stored"):
        to_json(replace(WHOLE, **change))


@pytest.mark.parametrize(
    ("kind", "value", "complaint"),
    [
        (Outer, {}, "path: Field required"),
        (Outer, {"path": "a", "window": True}, "window.int: Input should be a valid integer"),
        (Outer, {"path": "a", "several": [{"size": 1}]}, "unknown field several.0.size"),
        (Outer, 3, ".*Input should be an object"),
        (Setup, to_json(Setup(window=64)) | {"window": 0}, "--max-kv-size must be"),
    ],
)
def test_an_invalid_or_missing_field_is_named(kind: type, value: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{complaint}"):
        from_json(kind, value)
