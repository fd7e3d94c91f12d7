"""Dataclasses as JSON, and back: runs, requests and checkpoints are stored this way.

Every field is written, so that nothing can be forgotten. A tuple becomes a list, an enum its value,
a path its text, a datetime its ISO form, and a float that JSON lacks the text inf, -inf or nan. The
types of the fields turn them back; a field of type `Any` holds only values of JSON.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mlxchat.errors import UsageError

T = TypeVar("T")


def to_json(value: Any) -> dict[str, Any]:
    """A dataclass as an object of JSON. Raises ValueError naming a field that `from_json` would not
    read back as it is."""
    plain: dict[str, Any] = {}
    hints = get_type_hints(type(value))
    for name in _names(type(value)):
        own = getattr(value, name)
        plain[name] = _plain(own)
        again = _read(plain[name], hints[name], name)
        # NaN is not equal to itself.
        if again != own and repr(again) != repr(own):
            raise ValueError(f"{name} cannot be stored: {own!r:.60}")
    return plain


def from_json(kind: type[T], value: Any) -> T:
    """The dataclass `kind` from an object of JSON. A missing field gets its default.

    Raises ValueError naming a field that is invalid, unknown, or missing without a default.
    """
    return _dataclass(value, kind, "")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return to_json(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, PurePath) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _read(value: Any, hint: Any, name: str) -> Any:
    """The value of type `hint`. Raises ValueError."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        return _member(value, inner, name)
    if origin in (tuple, list) and isinstance(value, list):
        return _items(value, origin, inner, name)
    if origin in (dict, Mapping) and isinstance(value, dict) and all(type(k) is str for k in value):
        return {key: _read(each, inner[1], f"{name}.{key}") for key, each in value.items()}
    return _dataclass(value, hint, name) if is_dataclass(hint) else _single(value, hint, name)


def _member(value: Any, inner: Iterable[Any], name: str) -> Any:
    """The value of one of the types: of its own, if that is among them."""
    others = [each for each in inner if each is not NoneType]
    if len(others) == 1 and value is not None:
        return _read(value, others[0], name)
    for each in sorted(inner, key=lambda each: each is not type(value)):
        try:
            return _read(value, each, name)
        except ValueError:
            continue
    raise _invalid(value, name)


def _items(value: list[Any], kind: Any, inner: tuple[Any, ...], name: str) -> Any:
    has_any_length = kind is list or inner[-1] is ...
    hints = inner[:1] * len(value) if has_any_length else inner
    if len(hints) != len(value):
        raise _invalid(value, name)
    pairs = enumerate(zip(value, hints, strict=True))
    return kind(_read(each, hint, f"{name}[{i}]") for i, (each, hint) in pairs)


def _single(value: Any, hint: Any, name: str) -> Any:
    try:
        read = _converted(value, hint)
    except (ValueError, OverflowError):
        read = None
    if read is None and not (value is None and hint is NoneType):
        raise _invalid(value, name)
    return read


def _converted(value: Any, hint: Any) -> Any:
    """The value of a type without parts; None if it is of another one. Raises ValueError."""
    if hint is float and (type(value) is int or value in ("inf", "-inf", "nan")):
        return float(value)
    if get_origin(hint) is Literal:
        return next((e for e in get_args(hint) if e == value and type(e) is type(value)), None)
    if issubclass(hint, Enum) or (issubclass(hint, PurePath) and isinstance(value, str)):
        return hint(value)
    if issubclass(hint, datetime) and isinstance(value, str):
        return hint.fromisoformat(value)
    return value if type(value) is hint else None


def _dataclass(value: Any, kind: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise _invalid(value, name or kind.__name__)
    hints, required = get_type_hints(kind), _names(kind)
    if unknown := sorted(value.keys() - required.keys()):
        raise ValueError(f"unknown fields{name and f' in {name}'}: {', '.join(unknown)}")
    if missing := [each for each, needed in required.items() if needed and each not in value]:
        raise ValueError(f"missing fields{name and f' in {name}'}: {', '.join(missing)}")
    prefix = name and f"{name}."
    try:
        return kind(**{each: _read(value[each], hints[each], prefix + each) for each in value})
    except UsageError as error:
        raise ValueError(str(error)) from error


def _names(kind: Any) -> dict[str, bool]:
    """The fields of a dataclass, and whether each is required."""
    return {
        each.name: each.default is MISSING and each.default_factory is MISSING
        for each in fields(kind)
        if each.init
    }


def _invalid(value: Any, name: str) -> ValueError:
    return ValueError(f"invalid {name}: {value!r:.60}")
