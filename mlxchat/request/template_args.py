"""The chat template's own variables, written as KEY=VALUE."""

import json
import re
from collections.abc import Mapping
from typing import Any

from mlxchat.request.written_json import finite

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
