"""Durations, times, windows, schemas and the chat template's variables, as people write them."""

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime, time, timedelta
from typing import Any, Literal

# Help imports this file: patterns are compiled only when needed.
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = rf"(?:{_NUMBER}d)?\s*(?:{_NUMBER}h)?\s*(?:{_NUMBER}m)?\s*(?:{_NUMBER}s)?"
_SECONDS = (86_400, 3_600, 60, 1)
_MAX_DAYS = 36_500
_NAME = r"[A-Za-z][A-Za-z0-9_]*"

# The types of llm's short form of a schema, and one of its fields.
TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}
_TYPE = "|".join(TYPES)  # alone, it is no description: it was meant as a type
_FIELD = rf"([^\s:\"]+)(?:\s+({_TYPE}))?\s*(?::(?!\s*(?:{_TYPE})\Z)\s*(.*))?"

# Names that templates are given anyway.
RESERVED = frozenset(
    {
        *("messages", "add_generation_prompt", "tools", "documents", "self"),
        *("bos_token", "eos_token", "unk_token", "pad_token"),
        *("raise_exception", "strftime_now"),
    }
)


def parse_duration_s(text: str) -> float:
    """Seconds in a duration such as 8h, 90m, 1h30m, 45s or 2d.

    Raises ValueError if it is malformed, zero or without a unit.
    """
    match = re.fullmatch(_DURATION, text.strip(), re.IGNORECASE)
    numbers = match.groups("0") if match else ()
    seconds = sum(float(n) * unit for n, unit in zip(numbers, _SECONDS, strict=False))
    if not 0 < seconds <= _MAX_DAYS * 86_400:
        raise ValueError(
            "must be a positive duration with a unit (d, h, m or s), such as 8h or 1h30m, got "
            f"{text!r}"
        )
    return seconds


def parse_deadline(text: str, now: datetime | None = None) -> datetime:
    """The time-zone-aware moment of a local time such as 07:00, 23:59:30 or 2026-11-22 07:00.

    A time without a date means its next occurrence after `now`, which must be time-zone-aware.
    Raises ValueError if the time is malformed or past.
    """
    now = now or datetime.now().astimezone()
    written, today = text.strip(), now.astimezone().date()
    try:
        if ":" in written[:3]:
            clock = time.fromisoformat(written.rjust(5, "0"))
            days = (today, today + timedelta(days=1))
            moments = [datetime.combine(day, clock).astimezone() for day in days]
        else:
            moments = [datetime.fromisoformat(written).astimezone()]
    except (ValueError, OverflowError):
        raise ValueError(
            f"must be a local time such as 07:00 or '2026-11-22 07:00', got {text!r}"
        ) from None
    later = [moment for moment in moments if moment > now]
    if not later:
        raise ValueError(
            f"must be in the future, got {text!r} (without a date, a time means its next "
            "occurrence)"
        )
    return min(later)


def parse_window(text: str) -> int | Literal["auto"] | None:
    """Tokens in a window; None for "none", and "auto" as it is. Raises ValueError otherwise."""
    if text in ("auto", "none"):
        return "auto" if text == "auto" else None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"must be auto, none or a number of tokens, got {text!r}") from None


# JSON and schemas


def parse_strictly(text: str, parse_float: Callable[[str], float] | None = None) -> Any:
    """The value. Raises ValueError, also for NaN, Infinity and repeated names; RecursionError."""
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


def parse_shorthand(text: str) -> dict[str, Any]:
    """The JSON Schema of an object, from llm's short form: `name, age int, bio: one sentence`.

    Fields are separated by commas, or by lines if there are several; a field is a name, a type
    (`str` unless given) and, after a colon, a description. All are required. Raises ValueError.
    Source: `schema_dsl` of simonw/llm, which takes a misspelled type for `str`.
    """
    separator = "\n" if "\n" in text.strip() else ","
    properties: dict[str, Any] = {}
    for written in filter(None, (each.strip().rstrip(", ") for each in text.split(separator))):
        field = re.fullmatch(_FIELD, written, re.DOTALL)
        if field is None:
            types = ", ".join(sorted(TYPES))
            raise ValueError(
                f"{written!r}: after the name comes a type ({types}), or a colon and a description"
            )
        name, kind, description = field.groups()
        if name in properties:
            raise ValueError(f"field {name!r} is given twice")
        described = {"description": description} if description else {}
        properties[name] = {"type": TYPES[kind or "str"], **described}
    if not properties:
        raise ValueError("no field is given")
    return {"type": "object", "properties": properties, "required": list(properties)}


def list_of(schema: Any) -> dict[str, Any]:
    """The schema of an object whose `items` are a list of values of `schema`, as llm has it."""
    items = {"type": "array", "items": schema}
    return {"type": "object", "properties": {"items": items}, "required": ["items"]}


# Variables of the chat template


def parse_template_args(written: list[str]) -> dict[str, Any]:
    """Parse variables into a dictionary. A value that is not JSON is taken as text.

    Raises ValueError naming the first that is malformed or reserved.
    """
    args: dict[str, Any] = {}
    for each in written:
        key, found, value = each.partition("=")
        if not found or not re.fullmatch(_NAME, key):
            raise ValueError(f"must be KEY=VALUE, such as reasoning_effort=high, got {each!r}")
        args[key] = _value(value)
    return check_template_args(args)


def check_template_args(args: Any) -> dict[str, Any]:
    """Return `args` if they are valid variables. Raises TypeError or ValueError."""
    if not isinstance(args, dict):
        raise TypeError("must be KEY=VALUE")
    for key in args:
        if key in RESERVED or not re.fullmatch(_NAME, key):
            raise ValueError(f"cannot set {key!r}: mlxchat sets it, or it is no valid name")
    return args


def format_template_args(args: Mapping[str, Any]) -> list[str]:
    """Write variables as `parse_template_args` reads them."""
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for key, value in args.items()
    ]


def thinking_variables(wanted: bool) -> dict[str, Any]:
    """The variables that turn thinking on or off.

    Templates that know only `thinking` may change the format if it is true: it only turns it off.
    """
    return {"enable_thinking": wanted} | ({} if wanted else {"thinking": False})


def allows_thinking(variables: Mapping[str, Any]) -> bool:
    """Whether variables of a template leave thinking on."""
    return variables.get("enable_thinking") is not False


def _value(written: str) -> Any:
    try:
        value = json.loads(written, parse_float=finite, parse_constant=finite)
        # JSON can encode a lone surrogate, which no tokenizer takes.
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError):
        return written
