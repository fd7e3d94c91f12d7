"""Dataclasses as JSON, and back: runs, requests and checkpoints are stored this way.

pydantic writes every field, so that nothing can be forgotten, and checks every type when it reads.
"""

import json
from typing import Any, TypeVar

from mlxchat.errors import UsageError

T = TypeVar("T")


def to_json(value: Any) -> dict[str, Any]:
    """A dataclass as an object of JSON. Raises UsageError if `from_json` would not read it back as
    it is: a path that is not UTF-8, for example."""
    from pydantic import TypeAdapter

    try:
        adapter = TypeAdapter[Any](type(value))
        plain = adapter.dump_python(value, mode="json", warnings="error")
        again = from_json(type(value), plain)
    except ValueError as error:
        raise UsageError(f"cannot be stored: {error}") from error
    # NaN is not equal to itself.
    if again != value and repr(again) != repr(value):
        raise UsageError(f"cannot be stored: {value!r:.200}")
    return plain


def from_json(kind: type[T], value: Any) -> T:
    """The dataclass `kind` from an object of JSON. A missing field gets its default.

    Raises ValueError naming a field that is invalid, unknown, or missing without a default.
    """
    # Only checkpoints need it, and it takes a tenth of a second to import.
    from pydantic import TypeAdapter, ValidationError

    try:
        adapter = TypeAdapter(kind)
        return adapter.validate_json(json.dumps(value), strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "unexpected_keyword_argument":
            raise ValueError(f"unknown field {name}") from error
        raise ValueError(f"{name}: {first['msg']}") from error
    except UsageError as error:
        raise ValueError(str(error)) from error
