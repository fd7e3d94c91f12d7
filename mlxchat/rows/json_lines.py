"""Rows in JSON Lines: one object per line, in our own form or OpenAI's."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from mlxchat.errors import UsageError
from mlxchat.row_template import RowTemplate
from mlxchat.rows.fields import (
    NOTHING,
    ROW_OPTIONS,
    check_id,
    check_messages,
    check_options,
    check_text,
    check_unicode,
    shortened,
    unknown,
)
from mlxchat.rows.openai import is_openai, openai_id, openai_row
from mlxchat.rows.row import Form, Row, RowError
from mlxchat.wording import Field

OWN_FIELDS = ("id", "prompt", "messages")


def json_row(
    number: int, line: bytes, template: RowTemplate | None, form: Form, *, is_first: bool = False
) -> Row:
    """The row of a line; `form` is assumed if the line is not even an object.

    With a `template`, the row is in our own form, and fields that are no options are only data.
    Raises UsageError if not even the first row has the template's fields.
    """
    row = Row(number, None, form=form)
    try:
        record = _parse(line)
        if template is None and is_openai(record):
            row = replace(row, form=Form.OPENAI)
            row = replace(row, id=openai_id(record))
            assert row.id is not None
            return openai_row(number, row.id, record)
        row = replace(row, form=Form.OURS)
        given = record.get("id")
        row = row if given is None else replace(row, id=check_id(given))
        if template is None:
            return _own_row(row, record)
        if is_first:
            _check_fields(record, template)
        return _filled(row, record, template)
    except RowError as error:
        return row.broken(error)
    except RecursionError:
        return row.broken("nested too deeply")


def _own_row(row: Row, record: Mapping[str, Any]) -> Row:
    # A schema without keywords allows any value.
    given = {name: each for name, each in record.items() if name == "schema" or each not in NOTHING}
    others = given.keys() - {*OWN_FIELDS, *ROW_OPTIONS}
    if others:
        raise unknown(others, (*OWN_FIELDS, *ROW_OPTIONS))
    prompt, messages = given.get("prompt"), given.get("messages")
    if (prompt is None) == (messages is None):
        both = "prompt and messages cannot be combined"
        raise RowError(both if prompt is not None else "prompt or messages is missing")
    options = check_options({name: given[name] for name in ROW_OPTIONS if name in given})
    if messages is None:
        return replace(row, prompt=check_text("prompt", prompt), options=options)
    system, messages = check_messages(messages)
    if system is not None and "system" in options:
        raise RowError("system and a system message cannot be combined")
    options |= {} if system is None else {"system": system}
    return replace(row, messages=messages, options=options)


def _check_fields(record: Mapping[str, Any], template: RowTemplate) -> None:
    for name in template.fields:
        if name not in record:
            known = ", ".join(shortened(each) for each in list(record)[:20])
            raise UsageError(
                f"the first row has no field {shortened(name)}, only {known}: use them in ",
                Field("template"),
            )


def _filled(row: Row, record: Mapping[str, Any], template: RowTemplate) -> Row:
    for name in template.fields:
        if name not in record:
            raise RowError(f"the template's field {shortened(name)} is missing")
    values = {name: _as_text(name, record[name]) for name in template.fields}
    # An answer of an earlier batch is data as a whole.
    own = {} if "finish_reason" in record else record
    mine = [name for name in ROW_OPTIONS if name in own and name not in values]
    options = check_options({name: record[name] for name in mine})
    return replace(row, prompt=check_text("prompt", template.fill(values)), options=options)


def _as_text(name: str, value: Any) -> str:
    """A value in a prompt: text as it is, anything else as JSON."""
    if value is None:
        raise RowError(f"the template's field {shortened(name)} is null")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    check_unicode(f"field {shortened(name)}", text)
    return text


def _parse(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(
            line.decode(), object_pairs_hook=_without_repeats, parse_constant=_refuse
        )
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: invalid byte at position {error.start:,}") from error
    except json.JSONDecodeError as error:
        raise RowError(f"invalid JSON: {error.msg} at column {error.colno:,}") from error
    except RecursionError as error:
        raise RowError("invalid JSON: nested too deeply") from error
    except ValueError as error:
        # Python's message on numbers of thousands of digits names a function.
        words = "a number has too many digits" if "digits" in str(error) else str(error)
        raise RowError(f"invalid JSON: {words}") from error
    if not isinstance(record, dict):
        raise RowError(f"must be a JSON object, got {shortened(record)}")
    return record


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"name {shortened(repeated)} is given twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")
