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
    try:
        plain = _written(value)
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
        found = TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except UsageError as error:
        raise ValueError(str(error)) from error
    if unknown := _unknown(value, _written(found)):
        raise ValueError(f"unknown field {unknown}")
    return found


def _written(value: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(type(value)).dump_python(value, mode="json", warnings="error")


def _unknown(given: Any, known: Any, path: str = "") -> str:
    """The path of the first key that only `given` has; empty if there is none."""
    if isinstance(given, dict) and isinstance(known, dict):
        if new := sorted(given.keys() - known.keys()):
            return f"{path}{new[0]}"
        pairs = [(key, given[key], known[key]) for key in given]
    elif isinstance(given, list) and isinstance(known, list):
        pairs = list(zip(range(len(given)), given, known, strict=False))
    else:
        return ""
    found = (_unknown(own, other, f"{path}{key}.") for key, own, other in pairs)
    return next(filter(None, found), "")
