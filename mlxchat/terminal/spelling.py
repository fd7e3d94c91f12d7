"""Spells the names in messages for their readers: flags, options of `/set`, configuration keys.

Messages themselves contain names such as `Field("max_kv_size")`: see `wording`.
"""

import json
import shlex
from collections.abc import Collection

from mlxchat.options import options_of
from mlxchat.request import BATCH, CHAT, GENERATE
from mlxchat.request.shown import ChatShown
from mlxchat.wording import Action, Field, Message, Name

# The option name of each field.
OPTIONS = {
    field: each.name for field, each in (BATCH | GENERATE | CHAT | options_of(ChatShown)).items()
}

# The actions and fields that are commands of a chat.
IN_CHAT = ("clear", "continue", "retry", "schema", "unpin")


def as_flags(message: object) -> str:
    """For the command line: `--max-kv-size none`, `mlxchat models pull NAME`."""
    return Message(message).spelled(_as_flag)


def as_keys(message: object) -> str:
    """For a configuration file: `max-kv-size`, `raw = true`."""
    return Message(message).spelled(_as_key)


def in_chat(message: object, settable: Collection[str]) -> str:
    """For a chat whose /set takes the options in `settable`: `/set roll shift`, `/clear`."""

    def spell(name: Name) -> str:
        if isinstance(name, Field) and _option(name) in settable:
            return f"/set {_option(name)} {name.value}" if name.has_value else _option(name)
        if name.name in IN_CHAT:
            return f"/{name.name}"
        return _as_flag(name)

    return Message(message).spelled(spell)


def _as_flag(name: Name) -> str:
    if isinstance(name, Action):
        return _as_command(name)
    if name.name == "prompt":
        return "PROMPT"
    option = _option(name)
    if not name.has_value or name.value is True:
        return f"--{option}"
    if name.value is False:
        return f"--no-{option}"
    return f"--{option} {'none' if name.value is None else shlex.quote(str(name.value))}"


def _as_key(name: Name) -> str:
    if isinstance(name, Action):
        return _as_command(name)
    if not name.has_value:
        return _option(name)
    value = "none" if name.value is None else name.value
    plain = isinstance(value, bool | int | float)
    return f"{_option(name)} = {json.dumps(value if plain else str(value), ensure_ascii=False)}"


def _as_command(action: Action) -> str:
    match action.name:
        case "pull":
            return f"run `mlxchat models pull {action.argument}`"
        case "list catalog":
            return "see `mlxchat models list --all`"
        case "list models":
            return f"{action.plain} (`mlxchat models list`)"
        case "set default":
            return "run `mlxchat models default NAME`"
        case "edit config":
            return "run `mlxchat config edit`"
        case "clear" | "continue" | "retry" | "unpin":
            return action.plain


def _option(field: Field) -> str:
    return OPTIONS.get(field.name, field.name.replace("_", "-"))
