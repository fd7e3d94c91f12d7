"""Rows in JSON Lines: one object per line, in our own form or that of OpenAI's batch files.

In OpenAI's form, `model`, `user` and `metadata` are ignored, and every other field that is not
supported makes the row an error that names it.
Source: https://platform.openai.com/docs/guides/batch
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
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
from pydantic_core import from_json

from mlxchat.errors import UsageError
from mlxchat.options import Option, options_of
from mlxchat.request import Answer, Request
from mlxchat.request.batch import RowTemplate
from mlxchat.request.written import check_template_args
from mlxchat.rows.row import Row, RowError, RowId, check_fields, check_text, shortened
from mlxchat.settings import SamplingSettings
from mlxchat.text.template import Message

CONSTRAINTS = ("schema", "regex", "choice", "grammar")
_OF_REQUEST = (
    *("max_tokens", "min_tokens", "stop", "ignore_eos", "logprobs", "system", "think"),
    *("template_args", "prefill", *CONSTRAINTS),
)
_OPTIONS = {**options_of(Request), **options_of(Answer)}

# The options that a row may have, by field.
ROW_OPTIONS: Mapping[str, Option] = {
    **options_of(SamplingSettings),
    **{name: _OPTIONS[name] for name in _OF_REQUEST},
}
OWN_FIELDS = ("id", "prompt", "messages")

# OpenAI's fields that are ours, perhaps by another name; that may only have one value; and others.
SAME = (
    *("messages", "max_tokens", "top_p", "seed", "stop", "logit_bias"),
    *("frequency_penalty", "presence_penalty"),
)
RENAMED = {"temperature": "temp", "max_completion_tokens": "max_tokens"}
FIXED = {"method": "POST", "url": "/v1/chat/completions", "n": 1, "stream": False, "store": False}
IN_LINE = ("custom_id", "body", "method", "url")
IN_BODY = (
    *(*SAME, *RENAMED, "logprobs", "top_logprobs", "response_format"),
    *("n", "stream", "store", "model", "user", "metadata"),
)

# Making one takes longer than checking a value.
_checker = cache(TypeAdapter[Any])

# Values that ask for nothing.
NOTHING: tuple[Any, ...] = (None, [], {})


def _given(value: Any) -> Any:
    """Without the fields that ask for nothing. A schema without keywords allows any value."""
    if not isinstance(value, dict):
        return value
    return {k: each for k, each in value.items() if each not in NOTHING or k == "schema"}


def _parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _texts(value: Any) -> Any:
    """One text as a list, and an object as the texts NAME=VALUE."""
    if isinstance(value, dict):
        return [f"{name}={of_it}" for name, of_it in value.items()]
    return [value] if isinstance(value, str) else value


_Texts = Annotated[list[str], BeforeValidator(_texts)]


class _Fields(BaseModel):
    """An object in a line. What a library writes besides may be there if it is empty."""

    model_config = ConfigDict(extra="forbid", strict=True)
    _given = model_validator(mode="before")(_given)


class _ContentPart(_Fields):
    type: Literal["text"]
    text: str


class _Message(_Fields):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[_ContentPart], BeforeValidator(_parts)] = []
    reasoning_content: Any = None


# The options whose values in JSON have not the option's own type.
_KINDS: Mapping[str, Any] = {
    "stop": _Texts,
    "choice": _Texts,
    "logit_bias": _Texts,
    "schema": str | dict[str, Any] | bool,
    "grammar": str,
    "template_args": Annotated[dict[str, Any], AfterValidator(check_template_args)],
}


def json_rows(lines: Iterable[str], template: RowTemplate | None) -> Iterator[Row]:
    """Yield a row for each line that is not blank. A line that is not even an object has the form
    of the one before.

    With a `template`, rows are in our own form, and fields that are no options are only data.
    Raises UsageError if not even the first row has the template's fields.
    """
    is_first, is_openais = True, False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = Row(number, None, openai=is_openais)
        try:
            record = _parse(line)
            is_openais = template is None and not record.keys().isdisjoint(("custom_id", "body"))
            name = "custom_id" if is_openais else "id"
            row = Row(number, _id(name, record.get(name)), openai=is_openais)
            if template is not None:
                if is_first:
                    check_fields(template, record)
                record = _filled(record, template)
            elif is_openais:
                record = _translated(record)
            yield replace(row, **_asked(_given(record)))
        except RowError as error:
            yield row.broken(error)
        is_first = False


def _parse(line: str) -> dict[str, Any]:
    try:
        record = from_json(check_text("the line", line), allow_inf_nan=False)
    except ValueError as error:
        raise RowError(f"invalid JSON: {str(error).replace(' line 1', '')}") from error
    return _valid(dict[str, Any], record, "the line")


def _id(name: str, value: Any) -> RowId | None:
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise RowError(f"{name} must be text or a whole number, got {shortened(value)}")
    return value


def _valid(kind: Any, value: Any, name: str = "") -> Any:
    """The value, checked. Raises RowError naming the field."""
    try:
        return _checker(kind).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    where = ".".join(str(each) for each in (name, *first["loc"]) if each != "")
    match first["type"]:
        case "extra_forbidden":
            raise _unknown(where)
        case "missing":
            raise RowError(f"{where} is missing")
    words = first["msg"].removeprefix("Value error, ").replace("Input should", "must")
    raise RowError(f"{where} {words}, got {shortened(first['input'])}")


def _unknown(name: str) -> RowError:
    known = (*OWN_FIELDS, *ROW_OPTIONS)
    near = [] if "." in name else get_close_matches(name, known, n=1)
    return RowError(
        f"unknown field {shortened(name)}" + (f"; did you mean {near[0]}?" if near else "")
    )


def _asked(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a row in our form asks for, as fields of a Row."""
    for name in sorted(record.keys() - {*OWN_FIELDS, *ROW_OPTIONS}):
        raise _unknown(name)
    if ("prompt" in record) == ("messages" in record):
        both = "prompt and messages cannot be combined"
        raise RowError(both if "prompt" in record else "prompt or messages is missing")
    options = {name: _option(name, record[name]) for name in record if name in ROW_OPTIONS}
    constraints = [name for name in CONSTRAINTS if name in options]
    if len(constraints) > 1:
        raise RowError(f"{constraints[0]} and {constraints[1]} cannot be combined")
    if "prompt" in record:
        prompt = check_text("prompt", _valid(str, record["prompt"], "prompt"))
        return {"prompt": prompt, "options": options}
    system, messages = _conversation(_valid(list[_Message], record["messages"], "messages"))
    if system and "system" in options:
        raise RowError("system and a system message cannot be combined")
    return {"messages": messages, "options": options | system}


def _conversation(said: Sequence[_Message]) -> tuple[dict[str, str], tuple[Message, ...]]:
    """The system prompt, if any, as an option, and the messages after it, of which the last is the
    user's."""
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


def _option(name: str, value: Any) -> Any:
    option = ROW_OPTIONS[name]
    checked = _valid(_KINDS.get(name, option.type), value, name)
    if name in ("schema", "template_args"):
        return checked
    checked = tuple(checked) if isinstance(checked, list) else checked
    try:
        option.check(checked)
    except UsageError as error:
        raise RowError(str(error)) from error
    return checked


def _translated(line: Mapping[str, Any]) -> dict[str, Any]:
    """The row of ours that asks for the same as a line of OpenAI's."""
    if line.get("custom_id") is None:
        raise RowError("custom_id is missing")
    body = _given(_valid(dict[str, Any], line.get("body"), "body"))
    for where, record, names in (("", _given(line), IN_LINE), ("body.", body, IN_BODY)):
        for name, value in record.items():
            if name not in names:
                raise _unknown(where + name)
            if name in FIXED and value != FIXED[name]:
                wanted = json.dumps(FIXED[name])
                raise RowError(f"{where}{name} must be {wanted}, got {shortened(value)}")
    row = {RENAMED.get(name, name): body[name] for name in (*SAME, *RENAMED) if name in body}
    if "max_tokens" in body and body["max_tokens"] != row["max_tokens"]:
        raise RowError("max_tokens and max_completion_tokens differ")
    if _valid(bool, body.get("logprobs", False), "body.logprobs"):
        row["logprobs"] = body.get("top_logprobs", 0)
    elif body.get("top_logprobs"):
        raise RowError("body.top_logprobs needs logprobs: true")
    match body.get("response_format", {"type": "text"}):
        case {"type": "text"}:
            return row
        case {"type": "json_object"}:
            return row | {"schema": {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return row | {"schema": schema}
    raise RowError("body.response_format must be text, json_object, or json_schema with a schema")


def _filled(record: Mapping[str, Any], template: RowTemplate) -> dict[str, Any]:
    """A row in our form, with the template's prompt."""
    values: dict[str, str] = {}
    for name in template.fields:
        value = record.get(name)
        if value is None:
            raise RowError(f"the template's field {shortened(name)} is missing or null")
        values[name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    # An answer of an earlier batch is data as a whole.
    own = {} if "finish_reason" in record else record
    options = {k: own[k] for k in ROW_OPTIONS if k in own and k not in values}
    return {**options, "prompt": template.fill(values)}
