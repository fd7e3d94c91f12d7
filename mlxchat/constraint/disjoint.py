"""Whether two JSON Schemas can never both be satisfied by the same value.

`oneOf` is enforced as `anyOf` if this holds for each pair of its schemas. A False may be wrong, a
True never is.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

_ALL_TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})
_OBJECT = frozenset({"object"})
_NUMBER = frozenset({"number"})
_MAX_STEPS = 100_000
_MAX_REFERENCES = 20
_MAX_DEPTH = 10

Resolve = Callable[[str], Any]


class Disjointness:
    """Compares schemas of one document, in which `resolve` finds what a `$ref` refers to."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._steps = 0
        self._depth = 0

    def holds(self, one: Any, other: Any) -> bool:
        if self._depth > _MAX_DEPTH:
            return False
        self._depth += 1
        try:
            return any(
                self._parts_disjoint(part, with_)
                for part in self._parts(one)
                for with_ in self._parts(other)
            )
        finally:
            self._depth -= 1

    def _parts(self, schema: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
        """The schemas that must all hold for this one to hold."""
        if schema is False:
            yield {"enum": []}
        if not isinstance(schema, dict) or depth > _MAX_REFERENCES:
            return
        yield schema
        if isinstance(schema.get("$ref"), str):
            yield from self._parts(self._resolve(schema["$ref"]), depth + 1)
        for each in _list(schema, "allOf"):
            yield from self._parts(each, depth + 1)

    def _parts_disjoint(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            return False
        types, with_ = _types(one), _types(other)
        if types.isdisjoint(with_):
            return True
        values, others = _values(one), _values(other)
        if values is not None and others is not None and values.isdisjoint(others):
            return True
        if types <= _NUMBER and with_ <= _NUMBER and _ranges_disjoint(one, other):
            return True
        if types == _OBJECT == with_ and self._objects_disjoint(one, other):
            return True
        return self._options_disjoint(one, other) or self._options_disjoint(other, one)

    def _options_disjoint(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        return any(
            bool(options) and all(self.holds(option, other) for option in options)
            for options in (_list(one, "anyOf"), _list(one, "oneOf"))
        )

    def _objects_disjoint(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        required = {*_list(one, "required"), *_list(other, "required")}
        first, second = one.get("properties", {}), other.get("properties", {})
        return any(
            _forbids(one, name)
            or _forbids(other, name)
            or (name in first and name in second and self.holds(first[name], second[name]))
            for name in required
        )


def _forbids(schema: dict[str, Any], name: str) -> bool:
    return (
        schema.get("additionalProperties") is False
        and name not in schema.get("properties", {})
        and not schema.get("patternProperties")
    )


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _types(schema: dict[str, Any]) -> frozenset[str]:
    named = schema.get("type", list(_ALL_TYPES))
    listed = [named] if isinstance(named, str) else named
    types = frozenset("number" if each == "integer" else each for each in listed)
    literals = _literals(schema)
    return types if literals is None else types & frozenset(map(_type_of, literals))


def _literals(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _values(schema: dict[str, Any]) -> frozenset[str] | None:
    literals = _literals(schema)
    return None if literals is None else frozenset(map(_canonical, literals))


def _canonical(value: Any) -> str:
    """Equal for values that are equal in JSON, as 1 and 1.0 are."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return list(map(_plain, value))
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case _:
            return value


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _ranges_disjoint(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return _ends_before(one, other) or _ends_before(other, one)


def _ends_before(one: dict[str, Any], other: dict[str, Any]) -> bool:
    top, is_top_open = _bound(one, "maximum", "exclusiveMaximum", min)
    bottom, is_bottom_open = _bound(other, "minimum", "exclusiveMinimum", max)
    if top is None or bottom is None:
        return False
    return top < bottom or (top == bottom and (is_top_open or is_bottom_open))


def _bound(
    schema: dict[str, Any], key: str, open_key: str, tighter: Callable[..., Any]
) -> tuple[float | None, bool]:
    closed, opened = (
        value if isinstance(value, int | float) and not isinstance(value, bool) else None
        for value in (schema.get(key), schema.get(open_key))
    )
    if closed is None or opened is None:
        return (opened, True) if closed is None else (closed, False)
    return tighter(closed, opened), tighter(closed, opened) == opened
