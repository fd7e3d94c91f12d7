"""Rows in the form of OpenAI's batch files.

Fields that ask for nothing are accepted, `model`, `user` and `metadata` are ignored, and every
other field that is not supported makes the row an error that names it.
Source: https://platform.openai.com/docs/guides/batch
"""

from collections.abc import Mapping
from typing import Any

from mlxchat.rows.fields import (
    NOTHING,
    check_id,
    check_messages,
    check_options,
    shortened,
    unknown,
)
from mlxchat.rows.row import Form, Row, RowError, RowId

URL = "/v1/chat/completions"
LINE_FIELDS = ("custom_id", "method", "url", "body")

IGNORED = ("model", "user", "metadata")
# Values that ask for nothing.
NEUTRAL = {"n": 1, "stream": False, "store": False}
SAME = ("top_p", "seed", "stop", "logit_bias")
PENALTIES = ("frequency_penalty", "presence_penalty")
SPECIAL = (
    *("messages", "max_tokens", "max_completion_tokens", "temperature", "response_format"),
    *("logprobs", "top_logprobs"),
)
KNOWN = (*SPECIAL, *SAME, *PENALTIES, *IGNORED, *NEUTRAL)

# The limit of OpenAI's service.
MAX_TOP_LOGPROBS = 20


def is_openai(record: Mapping[str, Any]) -> bool:
    return "custom_id" in record or "body" in record


def openai_id(record: Mapping[str, Any]) -> RowId:
    custom_id = record.get("custom_id")
    if not isinstance(custom_id, str):
        raise RowError(f"custom_id must be text, got {shortened(custom_id)}")
    return check_id(custom_id)


def openai_row(number: int, id_: RowId, record: Mapping[str, Any]) -> Row:
    """The row of a line. Raises RowError."""
    others = {name for name in record if record[name] not in NOTHING} - set(LINE_FIELDS)
    if others:
        raise unknown(others, LINE_FIELDS)
    if record.get("method", "POST") != "POST":
        raise RowError(f"method must be POST, got {shortened(record['method'])}")
    if record.get("url", URL) != URL:
        raise RowError(f"url must be {URL}, got {shortened(record['url'])}")
    body = record.get("body")
    if not isinstance(body, dict):
        raise RowError(f"body must be an object, got {shortened(body)}")
    given = {name: value for name, value in body.items() if value not in NOTHING}
    _check_names(given)
    system, messages = check_messages(given.get("messages"))
    options = check_options(_options(given) | {"system": system})
    return Row(number, id_, messages=messages, options=options, form=Form.OPENAI)


def _check_names(body: Mapping[str, Any]) -> None:
    others = sorted(body.keys() - set(KNOWN))
    if others:
        what = ", ".join(shortened(each) for each in others[:5])
        raise RowError(f"not supported in body: {what}")
    for name, neutral in NEUTRAL.items():
        if name in body and body[name] != neutral:
            raise RowError(
                f"{name} must be {str(neutral).lower()} if given, got {shortened(body[name])}"
            )


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {name: body[name] for name in SAME if name in body}
    if "temperature" in body:
        options["temp"] = _number("temperature", body["temperature"])
    for name in PENALTIES:
        if name in body:
            options[name] = _number(name, body[name], low=-2)
    limits = [body[name] for name in ("max_tokens", "max_completion_tokens") if name in body]
    if len(limits) == 2 and limits[0] != limits[1]:
        raise RowError("max_tokens and max_completion_tokens differ")
    if limits:
        options["max_tokens"] = limits[0]
    return options | _schema(body.get("response_format")) | _logprobs(body)


def _number(name: str, value: Any, low: int = 0) -> Any:
    """The value, whose error names the field as the row does."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= 2:
        raise RowError(f"{name} must be a number between {low} and 2, got {shortened(value)}")
    return value


def _schema(wanted: Any) -> dict[str, Any]:
    match wanted:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"schema": {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"schema": schema}
        case {"type": "json_schema"}:
            raise RowError("response_format has no json_schema.schema")
        case {"type": kind}:
            raise RowError(f"response_format type {shortened(kind)} is not supported")
        case _:
            raise RowError("response_format must be an object with a type")


def _logprobs(body: Mapping[str, Any]) -> dict[str, Any]:
    wanted, top = body.get("logprobs", False), body.get("top_logprobs", 0)
    if not isinstance(wanted, bool):
        raise RowError(f"logprobs must be true or false, got {shortened(wanted)}")
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= MAX_TOP_LOGPROBS:
        raise RowError(f"top_logprobs must be a number from 0 to {MAX_TOP_LOGPROBS}")
    if top and not wanted:
        raise RowError("top_logprobs needs logprobs: true")
    return {"logprobs": top} if wanted else {}
