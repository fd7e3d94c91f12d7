"""Values that a schema leaves open: of any type, but with numbers that every program reads exactly,
and that end.

JSON also allows 1e999, which Python reads as infinity, and decimals without end.
"""

from typing import Any

from mlxchat.constraint.literals import BOUNDS, FINEST, MAX_INTEGER, allows_finest

NAME = "any"

ANYTHING = {"$ref": f"#/$defs/{NAME}"}

_WIDEST = {"minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}

DEFINITION: dict[str, Any] = {
    "type": ["null", "boolean", "number", "string", "array", "object"],
    "items": ANYTHING,
    "additionalProperties": ANYTHING,
    **_WIDEST,
    "multipleOf": FINEST,
}

# The value is one of a list, or other schemas apply to it too.
_DECIDED = frozenset({"const", "enum", "$ref", "allOf", "anyOf"})


def with_anything(written: dict[str, Any]) -> dict[str, Any]:
    """The schema with the values that it leaves open, if no other schema applies to the same value:
    llguidance cannot intersect recursive schemas."""
    if not written:
        return dict(ANYTHING)
    if not _DECIDED.isdisjoint(written):
        return written
    named = written.get("type", DEFINITION["type"])
    types = {named} if isinstance(named, str) else set(named)
    defaults: dict[str, Any] = {} if "type" in written else dict(_WIDEST)
    bounds = [written[key] for key in BOUNDS if key in written]
    if "number" in types and allows_finest(*bounds):
        defaults["multipleOf"] = FINEST
    if "array" in types:
        defaults["items"] = ANYTHING
    if "object" in types:
        defaults["additionalProperties"] = ANYTHING
    return {**defaults, **written}
