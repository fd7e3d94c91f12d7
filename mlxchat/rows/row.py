"""One row of a batch, made from the fields that the input has: a prompt or messages, and options.

Source: the fields of a message, and of a request in OpenAI's batch files, which libraries write:
https://platform.openai.com/docs/guides/batch
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from hashlib import blake2b
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from mlxchat.errors import UsageError
from mlxchat.options import Option, options_of
from mlxchat.request import Answer, Request
from mlxchat.request.written import check_template_args
from mlxchat.settings import GenerationSettings, SamplingSettings
from mlxchat.text.template import Message
from mlxchat.units import beginning

RowId = str | int
Fields = Mapping[str, Any]

# Of each, a row may have one; `app` checks their values.
CONSTRAINTS = ("schema", "regex", "choice", "grammar")
_OPTIONS = {**options_of(Request), **options_of(Answer)}
_OTHERS = ("system", "think", "template_args", "prefill", *CONSTRAINTS)

# The options that a row may have, by field. Drafts are for the whole batch.
ROW_OPTIONS: Mapping[str, Option] = {
    **options_of(SamplingSettings),
    **{name: each for name, each in options_of(GenerationSettings).items() if name != "lookup"},
    **{name: _OPTIONS[name] for name in _OTHERS},
}
OWN_FIELDS = ("id", "prompt", "messages")

# OpenAI's names of ours; its fields that are ignored; and those that may have only one value.
RENAMED = {"temperature": "temp", "max_completion_tokens": "max_tokens"}
IGNORED = ("model", "user", "metadata")
FIXED = {"n": 1, "stream": False, "store": False}

MAX_ERROR_CHARS = 1_000
QUOTED_CHARS = 60


class RowError(Exception):
    """A malformed row: the message is for its line in the output."""


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt or messages, with options.

    `number` is that of the line, record or file, from 1. `id` is as given, so that 7 and "7" are
    two ids; a row without one has None, and is called by its number. `options` are values by
    field, such as temp and max_tokens, which are checked, except for constraints. A system message
    is not in `messages` but in the options. A malformed row has an `error` and nothing to run; its
    `id` is empty if it cannot be read, is invalid, or is another row's.
    """

    number: int
    id: RowId | None = None
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    options: Fields = field(default_factory=dict[str, Any])
    error: str | None = None

    @property
    def key(self) -> bytes:
        """What identifies the row among all rows and in a second run: a hash of 16 bytes."""
        return key_of(self.id, self.number)

    def broken(self, error: object) -> "Row":
        """The row with an error instead of something to run."""
        return Row(self.number, self.id, error=beginning(str(error), MAX_ERROR_CHARS))

    def asking(self, fields: Fields) -> "Row":
        """The row with what the fields ask for. Raises RowError."""
        given = _given(of_openai(fields) if fields.keys() & {"body", "custom_id"} else fields)
        for name in sorted(given.keys() - {*OWN_FIELDS, *ROW_OPTIONS}):
            raise _unknown(name)
        if ("prompt" in given) == ("messages" in given):
            both = "prompt and messages cannot be combined"
            raise RowError(both if "prompt" in given else "prompt or messages is missing or empty")
        options = {name: _option(name, given[name]) for name in given if name in ROW_OPTIONS}
        if "prompt" in given:
            prompt = check_text("prompt", valid(str, given["prompt"], "prompt"))
            return replace(self, prompt=prompt, options=options)
        system, messages = _conversation(valid(list[_Message], given["messages"], "messages"))
        if system and "system" in options:
            raise RowError("system and a system message cannot be combined")
        return replace(self, messages=messages, options=options | system)


def key_of(id_: RowId | None, number: int | None) -> bytes:
    """The key of a row with this id, or if it has none, this number."""
    named = ["id", id_] if id_ is not None else ["row", number]
    return blake2b(json.dumps(named).encode(), digest_size=16).digest()


def check_id(value: Any) -> RowId | None:
    """The value, if it can be an id; an empty one is none. Raises RowError."""
    if value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise RowError(f"id must be text or a whole number, got {shortened(value)}")
    return check_text("id", value) if isinstance(value, str) else value


def check_text(name: str, text: str) -> str:
    """The text, if not blank. Raises RowError, also for surrogates: bytes that were not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00
        raise RowError(f"not UTF-8: invalid byte 0x{byte:02X}; convert the file to UTF-8") from None
    if "\0" in text:
        raise RowError(f"{name} contains a NUL character")
    if not text.strip():
        raise RowError(f"{name} is empty")
    return text


def shortened(value: Any) -> str:
    """The value in one short line."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value) if isinstance(value, bool | None) else repr(value)
    return beginning(text, QUOTED_CHARS)


def of_openai(line: Fields) -> dict[str, Any]:
    """Our fields that ask for the same as a line of OpenAI's batch files. Raises RowError."""
    body: dict[str, Any] = _given(valid(dict[str, Any], line.get("body"), "body"))
    for name, value in FIXED.items():
        if body.pop(name, value) != value:
            raise RowError(f"{name} can only be {json.dumps(value)}")
    ignored = (*IGNORED, "response_format")
    fields = {RENAMED.get(name, name): body[name] for name in body if name not in ignored}
    match body.get("response_format", {"type": "text"}):
        case {"type": "text"}:
            pass
        case {"type": "json_object"}:
            fields["schema"] = {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            fields["schema"] = schema
        case _:
            raise RowError("response_format must be text, json_object, or json_schema with schema")
    return fields


# Making one takes longer than checking a value.
_checker = cache(TypeAdapter[Any])


def valid(kind: Any, value: Any, name: str) -> Any:
    """The value, checked. Raises RowError naming the field."""
    try:
        return _checker(kind).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    where = ".".join(map(str, (name, *first["loc"])))
    match first["type"]:
        case "extra_forbidden":
            raise _unknown(where)
        case "missing":
            raise RowError(f"{where} is missing")
    words = first["msg"].removeprefix("Value error, ").replace("Input should", "must")
    words = words.replace("valid dictionary", "JSON object")
    raise RowError(f"{where} {words}, got {shortened(first['input'])}")


def _unknown(name: str) -> RowError:
    known = () if "." in name else (*OWN_FIELDS, *ROW_OPTIONS, *RENAMED)
    near = [RENAMED.get(each, each) for each in get_close_matches(name, known, n=1, cutoff=0.7)]
    hint = f"; did you mean {near[0]}?" if near else ""
    return RowError(f"unknown field {shortened(name)}{hint}")


def _given(value: Any) -> Any:
    """Without the fields that ask for nothing. An empty schema allows all, a choice none."""
    if not isinstance(value, Mapping):
        return value
    return {
        name: each
        for name, each in value.items()
        if each not in (None, [], {}) or (name, each) in (("schema", {}), ("choice", []))
    }


def _parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _texts(value: Any) -> Any:
    """One text as a list, and an object as the texts NAME=VALUE."""
    if isinstance(value, dict):
        return [f"{name}={of_it}" for name, of_it in value.items()]
    return [value] if isinstance(value, str) else value


_Texts = Annotated[list[str], BeforeValidator(_texts)]

# The options whose values in JSON have not the option's own type.
_KINDS: Mapping[str, Any] = {
    "stop": _Texts,
    "logit_bias": _Texts,
    "template_args": Annotated[dict[str, Any], AfterValidator(check_template_args)],
}


def _option(name: str, value: Any) -> Any:
    if name in CONSTRAINTS:
        return value
    option = ROW_OPTIONS[name]
    checked = valid(_KINDS.get(name, option.type), value, name)
    checked = tuple(checked) if isinstance(checked, list) else checked
    try:
        option.check(checked)
    except UsageError as error:
        raise RowError(str(error).replace(option.flag, name, 1)) from error
    return checked


class _Object(BaseModel):
    """What a library writes besides may be there if it is empty."""

    model_config = ConfigDict(extra="forbid", strict=True)
    _given = model_validator(mode="before")(_given)


class _ContentPart(_Object):
    type: Literal["text"]
    text: str


class _Message(_Object):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[_ContentPart], BeforeValidator(_parts)] = []
    reasoning_content: Any = None


def _conversation(said: Sequence[_Message]) -> tuple[dict[str, str], tuple[Message, ...]]:
    """The system prompt, if any, as an option, and the messages after it, the user's last."""
    messages: list[Message] = []
    for at, each in enumerate(said):
        # Newer models call the system's role developer.
        role = "system" if each.role == "developer" else each.role
        text = "\n".join(part.text for part in each.content)
        if text or role != "assistant":
            check_text(f"messages.{at}.content", text)
        messages.append({"role": role, "content": text})
    system: list[str] = []
    while messages and messages[0]["role"] == "system":
        system.append(messages.pop(0)["content"])
    if any(each["role"] == "system" for each in messages):
        raise RowError("a system message must come before all others")
    if not messages or messages[-1]["role"] != "user":
        raise RowError("the last message must be the user's")
    return ({"system": "\n\n".join(system)} if system else {}), tuple(messages)
