"""Removes the parts of a recursive schema that no finite value satisfies.

A model that entered one could never finish its answer: an object that requires itself, say.
"""

from collections.abc import Mapping
from typing import Any

_SCHEMAS_BY_NAME = ("properties", "patternProperties")
_SCHEMAS = ("additionalProperties", "items")
_LISTS_OF_SCHEMAS = ("prefixItems", "allOf", "anyOf")
_SCALARS = {"string", "number", "integer", "boolean", "null"}


def finite_definitions(definitions: Mapping[str, Any]) -> set[str]:
    """The names of the definitions that some finite value satisfies: the least fixed point."""
    finite: set[str] = set()
    waiting = list(definitions)
    while True:
        # Later ones first: they were found in earlier ones.
        waiting.reverse()
        left: list[str] = []
        for name in waiting:
            if is_finite(definitions[name], finite):
                finite.add(name)
            else:
                left.append(name)
        if len(left) == len(waiting):
            return finite
        waiting = left


def is_finite(schema: Any, finite: set[str]) -> bool:
    """Whether a finite value can satisfy the schema, if those of `finite` can be."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and schema["$ref"].rpartition("/")[2] not in finite:
        return False
    if not all(is_finite(each, finite) for each in schema.get("allOf", ())):
        return False
    if "anyOf" in schema and not any(is_finite(each, finite) for each in schema["anyOf"]):
        return False
    types = schema.get("type", "null")
    if not _SCALARS.isdisjoint([types] if isinstance(types, str) else types):
        return True
    return any(
        _is_finite_object(schema, finite) if each == "object" else _is_finite_array(schema, finite)
        for each in ([types] if isinstance(types, str) else types)
    )


def _is_finite_object(schema: dict[str, Any], finite: set[str]) -> bool:
    properties = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    return all(is_finite(properties.get(name, rest), finite) for name in schema.get("required", ()))


def _is_finite_array(schema: dict[str, Any], finite: set[str]) -> bool:
    needed = schema.get("minItems", 0)
    first = schema.get("prefixItems", [])
    enough = len(first) >= needed or is_finite(schema.get("items", True), finite)
    return enough and all(is_finite(each, finite) for each in first[:needed])


def without_infinite(schema: Any, finite: set[str]) -> Any:
    """The schema with every reference to an infinite definition replaced by `false`."""
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if reference is not None and reference.rpartition("/")[2] not in finite:
        return False
    written = dict(schema)
    for key, value in schema.items():
        if key in _SCHEMAS_BY_NAME:
            written[key] = {name: without_infinite(each, finite) for name, each in value.items()}
        elif key in _SCHEMAS:
            written[key] = without_infinite(value, finite)
        elif key in _LISTS_OF_SCHEMAS:
            written[key] = [without_infinite(each, finite) for each in value]
    return written
