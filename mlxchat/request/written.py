"""JSON, schemas and the chat template's variables, as people write them.

JSON from elsewhere is read so that no two readers understand it differently. llm's short form of a
schema is `name, age int, bio: one sentence`: fields are separated by commas, or by lines if there
are several; a field is a name, a type (`str` unless given) and, after a colon, a description. All
fields are required.
Source: `schema_dsl` of simonw/llm, which takes a misspelled type for `str`; here it is an error.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}


def parse_strictly(text: str, parse_float: Callable[[str], float] | None = None) -> Any:
    """The value. Raises ValueError, also for NaN, Infinity and names given twice; RecursionError if
    it is nested too deeply."""
    return json.loads(
        text, object_pairs_hook=_without_repeats, parse_float=parse_float, parse_constant=finite
    )


def finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"name {repeated!r:.60} is given twice")
    return found


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


# Names that templates are given anyway.
RESERVED = frozenset(
    {
        *("messages", "add_generation_prompt", "tools", "documents", "self"),
        *("bos_token", "eos_token", "unk_token", "pad_token"),
        *("raise_exception", "strftime_now"),
    }
)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def parse_template_args(written: list[str]) -> dict[str, Any]:
    """Parse variables into a dictionary. A value that is not JSON is taken as text.

    Raises ValueError naming the first that is malformed or reserved.
    """
    args: dict[str, Any] = {}
    for each in written:
        key, found, value = each.partition("=")
        if not found or not _NAME.fullmatch(key):
            raise ValueError(f"must be KEY=VALUE, such as reasoning_effort=high, got {each!r}")
        args[key] = _value(value)
    return check_template_args(args)


def check_template_args(args: Any) -> dict[str, Any]:
    """Return `args` if they are valid variables. Raises TypeError or ValueError."""
    if not isinstance(args, dict):
        raise TypeError("must be KEY=VALUE")
    for key in args:
        if key in RESERVED or not _NAME.fullmatch(key):
            raise ValueError(f"cannot set {key!r}: mlxchat sets it itself")
    return args


def format_template_args(args: Mapping[str, Any]) -> list[str]:
    """Write variables as `parse_template_args` reads them."""
    return [f"{key}={_as_written(value)}" for key, value in args.items()]


def thinking_variables(wanted: bool) -> dict[str, Any]:
    """The variables that turn thinking on or off.

    Templates that know only `thinking` may change the answer's format if it is true, so it is set
    only to turn thinking off.
    """
    return {"enable_thinking": wanted} | ({} if wanted else {"thinking": False})


def allows_thinking(variables: Mapping[str, Any]) -> bool:
    """Whether variables of a template leave thinking on."""
    return variables.get("enable_thinking") is not False


def _as_written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value(written: str) -> Any:
    try:
        value = json.loads(written, parse_constant=finite)
        # JSON can encode a lone surrogate, which no tokenizer takes.
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError):
        return written
