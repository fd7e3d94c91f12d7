"""Checks the fields of a row: its id, its texts, its messages and its options.

Every check raises RowError with the message for the row's line in the output.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from mlxchat.errors import UsageError
from mlxchat.options import Option, options_of
from mlxchat.request import Answer, Request
from mlxchat.rows.row import RowError, RowId
from mlxchat.settings import SamplingSettings
from mlxchat.template_args import check_template_args
from mlxchat.text.template import Message

MAX_ID_CHARS = 4_096
QUOTED_CHARS = 60

# Values that ask for nothing.
NOTHING: tuple[Any, ...] = (None, [], {})

_OF_REQUEST = (
    *("max_tokens", "min_tokens", "stop", "ignore_eos", "logprobs", "system", "think"),
    "template_args",
)
CONSTRAINTS = ("schema", "regex", "choice", "grammar")

# The options that a row may have, by field.
ROW_OPTIONS: Mapping[str, Option] = {
    **options_of(SamplingSettings),
    **{name: options_of(Request)[name] for name in _OF_REQUEST},
    **{name: options_of(Answer)[name] for name in (*CONSTRAINTS, "prefill")},
}

# What OpenAI's library writes besides, and our own answers in that form.
IGNORED_OF_MESSAGES = {"reasoning_content"}
ROLES = ("system", "user", "assistant")


def check_id(value: Any) -> RowId:
    """The id as given."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise RowError(f"id must be text or a whole number, got {shortened(value)}")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise RowError("id must fit into 64 bits: write a longer one as text")
    if isinstance(value, str):
        check_unicode("id", value)
        if len(value) > MAX_ID_CHARS:
            raise RowError(f"id is longer than {MAX_ID_CHARS:,} characters")
    return value


def check_text(name: str, value: Any) -> str:
    """A text that is not blank."""
    if not isinstance(value, str):
        raise RowError(f"{name} must be text, got {shortened(value)}")
    check_unicode(name, value)
    if not value.strip():
        raise RowError(f"{name} is empty")
    return value


def check_unicode(name: str, text: str) -> None:
    if "\0" in text:
        raise RowError(f"{name} contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RowError(f"{name} contains a surrogate, which is not a character") from None


def check_messages(value: Any) -> tuple[str | None, tuple[Message, ...]]:
    """The system prompt, if any, and the messages after it, of which the last is the user's."""
    if not isinstance(value, list) or not value:
        raise RowError("messages must be a list with at least one message")
    messages = [_message(f"messages[{at}]", each) for at, each in enumerate(value)]
    system: list[str] = []
    while messages and messages[0]["role"] == "system":
        system.append(messages.pop(0)["content"])
    if any(each["role"] == "system" for each in messages):
        raise RowError("a system message must come before all others")
    if not messages or messages[-1]["role"] != "user":
        raise RowError("the last message must be the user's")
    return "\n\n".join(system) or None, tuple(messages)


def _message(name: str, value: Any) -> Message:
    if not isinstance(value, dict):
        raise RowError(f"{name} must be an object with role and content")
    given = {key for key, each in value.items() if each not in NOTHING}
    others = sorted(given - {"role", "content", *IGNORED_OF_MESSAGES})
    if others:
        raise RowError(f"{name}: unknown field {shortened(others[0])}")
    role = value.get("role")
    # Newer models call the system's role developer.
    role = "system" if role == "developer" else role
    if role not in ROLES:
        raise RowError(f"{name}: role must be one of {', '.join(ROLES)}, got {shortened(role)}")
    content = value.get("content")
    if role == "assistant" and content in NOTHING:
        content = ""
    content = _content(f"{name}: content", content)
    check_unicode(f"{name}: content", content)
    if role != "assistant":
        check_text(f"{name}: content", content)
    return {"role": role, "content": content}


def _content(name: str, value: Any) -> str:
    """Text, or a list of parts of type "text"."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise RowError(f"{name} must be text or a list of text parts, got {shortened(value)}")
    texts: list[str] = []
    for part in value:
        match part:
            case {"type": "text", "text": str(text), **others} if not any(others.values()):
                texts.append(text)
            case {"type": str(kind)} if kind != "text":
                raise RowError(f"{name}: parts of type {shortened(kind)} are not supported")
            case _:
                raise RowError(f'{name}: a part must be {{"type": "text", "text": …}}')
    return "\n".join(texts)


def check_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as values of their fields; null means not given."""
    options = {name: _checked(name, value) for name, value in given.items() if value is not None}
    constraints = [name for name in CONSTRAINTS if name in options]
    if len(constraints) > 1:
        raise RowError(f"{constraints[0]} and {constraints[1]} cannot be combined")
    return options


def _checked(name: str, value: Any) -> Any:
    match name, value:
        case "schema", str() | dict() | bool():
            return value
        case "template_args", dict():
            return _checked_variables(value)
        case (("regex" | "grammar"), str()):
            check_unicode(name, value)
            return value
        case (
            ("stop", str()) | ("logit_bias", dict()) | (("stop" | "choice" | "logit_bias"), list())
        ):
            return _checked_texts(name, _listed(value))
        case _ if name in _WANTED:
            raise RowError(f"{name} must be {_WANTED[name]}, got {shortened(value)}")
        case _:
            return _checked_value(name, value)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [f"{name}={of_it}" for name, of_it in value.items()]
    return [value] if isinstance(value, str) else value


def _checked_texts(name: str, texts: list[Any]) -> tuple[str, ...]:
    for text in texts:
        if not isinstance(text, str):
            raise RowError(f"{name} must be {_WANTED[name]}, got {shortened(texts)}")
        check_unicode(name, text)
    return _as_declared(name, tuple(texts))


def _checked_value(name: str, value: Any) -> Any:
    kind: type = ROW_OPTIONS[name].type
    kinds = (int, float) if kind is float else (kind,)
    # Python's True is an int.
    if type(value) not in kinds or (kind is float and abs(value) > sys.float_info.max):
        wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise RowError(f"{name} must be {wanted[kind]}, got {shortened(value)}")
    if kind is str:
        check_unicode(name, value)
    return _as_declared(name, kind(value))


def _as_declared(name: str, value: Any) -> Any:
    """The value, if the option's declaration allows it."""
    try:
        ROW_OPTIONS[name].check(value)
    except UsageError as error:
        raise RowError(str(error)) from error
    return value


def _checked_variables(value: dict[str, Any]) -> dict[str, Any]:
    try:
        # Python reads 1e999 as infinity, and a surrogate as a character.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        return check_template_args(value)
    except UnicodeEncodeError:
        raise RowError("template_args contains a surrogate, which is not a character") from None
    except ValueError as error:
        raise RowError(f"template_args {error}") from error


_WANTED = {
    "schema": "an object or text",
    "template_args": "an object",
    "stop": "text or a list of texts",
    "choice": "a list of texts",
    "logit_bias": "an object of token ids and numbers",
    "regex": "text",
    "grammar": "text",
}


def unknown(names: Iterable[str], known: Iterable[str]) -> RowError:
    """The error for fields that are not known, naming all of them, with a hint for the first."""
    listed = sorted(names)
    what = ", ".join(shortened(each) for each in listed[:5])
    known = list(known)
    first = listed[0].lower()
    near = get_close_matches(first, known, n=1) or [
        each for each in known if len(each) > 2 and first.startswith(each)
    ]
    hint = f"; did you mean {near[0]}?" if near else ""
    return RowError(f"unknown field{'s' if len(listed) > 1 else ''} {what}{hint}")


def shortened(value: Any) -> str:
    """The value in one short line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a very large number"
    text = repr(value if not isinstance(value, str) else value[: QUOTED_CHARS + 1])
    return text if len(text) <= QUOTED_CHARS + 2 else f"{text[: QUOTED_CHARS - 3]}…"
