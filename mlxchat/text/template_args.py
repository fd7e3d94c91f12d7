"""The chat template's own variables, as they are written: KEY=VALUE."""

import json
import re
from collections.abc import Iterable
from typing import Any

from mlxchat.errors import UsageError
from mlxchat.text.template import RESERVED

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def parse_template_args(written: Iterable[str], name: str = "template_args") -> dict[str, Any]:
    """The variables by name; a value that is JSON is what that says, any other is a text.

    Raises UsageError naming the first that is malformed or that templates are given already.
    """
    args: dict[str, Any] = {}
    for each in written:
        key, found, value = each.partition("=")
        if not found or not _NAME.fullmatch(key):
            raise UsageError(
                f"{name} must be KEY=VALUE, such as reasoning_effort=high, got {each!r}"
            )
        args[key] = _value(value)
    return check_template_args(args, name)


def check_template_args(args: Any, name: str = "template_args") -> dict[str, Any]:
    """The variables, if that is what they are. Raises UsageError."""
    if not isinstance(args, dict):
        raise UsageError(f"{name} must be KEY=VALUE")
    for key in args:
        if key in RESERVED or not _NAME.fullmatch(key):
            raise UsageError(f"{name}: the template is given {key!r} by mlxchat itself")
    return args


def _value(written: str) -> Any:
    try:
        value = json.loads(written, parse_constant=_refuse)
        # JSON can spell half a character, which no tokenizer takes.
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError):
        return written


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
