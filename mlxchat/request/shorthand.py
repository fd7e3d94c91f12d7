"""llm's short form of a schema: `name, age int, bio: one sentence`.

Fields are separated by commas, or by lines if there are several; a field is a name, a type (`str`
unless given) and, after a colon, a description. All fields are required.
Source: `schema_dsl` of simonw/llm, which takes a misspelled type for `str`; here it is an error.
"""

from typing import Any

TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}


class ShorthandError(ValueError):
    """What is wrong with the short form, in one line."""


def parse_shorthand(text: str) -> dict[str, Any]:
    """The JSON Schema of an object with these fields. Raises ShorthandError."""
    separator = "\n" if "\n" in text.strip() else ","
    fields = [field.strip() for field in text.split(separator) if field.strip()]
    if not fields:
        raise ShorthandError("no field is given")
    properties: dict[str, Any] = {}
    for field in fields:
        name, schema = _parse_field(field)
        if name in properties:
            raise ShorthandError(f"field {name!r} is given twice")
        properties[name] = schema
    return {"type": "object", "properties": properties, "required": list(properties)}


def list_of(schema: Any) -> dict[str, Any]:
    """The schema of an object whose `items` are a list of values of `schema`, as llm has it."""
    items = {"type": "array", "items": schema}
    return {"type": "object", "properties": {"items": items}, "required": ["items"]}


def _parse_field(field: str) -> tuple[str, dict[str, Any]]:
    head, _, description = field.partition(":")
    words = head.split()
    if not words:
        raise ShorthandError(f"field {field!r} has no name")
    if len(words) > 2 or (len(words) == 2 and words[1] not in TYPES):
        types = ", ".join(sorted(TYPES))
        raise ShorthandError(
            f"{head.strip()!r}: after the name comes a type ({types}), or a colon and a description"
        )
    schema: dict[str, Any] = {"type": TYPES[words[1]] if len(words) == 2 else "string"}
    if description.strip():
        schema["description"] = description.strip()
    return words[0], schema
