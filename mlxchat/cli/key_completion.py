"""Shell completion for `mlxchat config`: keys and their values."""

from typing import Any

import typer

from mlxchat.cli.completion import Names, complete_model, quietly
from mlxchat.cli.configured import configurable, keys_of
from mlxchat.config.file import COMMANDS


@quietly
def complete_key(context: typer.Context, incomplete: str) -> Names:
    """Keys of `config set`."""
    return [*keys_of(context.find_root().command), *_alias_keys()]


@quietly
def complete_shown_key(context: typer.Context, incomplete: str) -> Names:
    """Keys of `config show`, which also takes tables."""
    return [
        *COMMANDS,
        *keys_of(context.find_root().command),
        *_alias_keys(),
    ]


@quietly
def complete_value(context: typer.Context, incomplete: str) -> Names:
    """Values of the key on the command line."""
    table, _, name = str(context.params.get("key")).partition(".")
    if table in ("model", "aliases") or name == "model":
        return complete_model(incomplete)
    root: Any = context.find_root().command
    option = configurable(root.commands[table])[name.replace("_", "-")]
    if option.is_flag:
        return ["true", "false"]
    return [str(each) for each in option.type_descriptor.choices or ()]


def _alias_keys() -> list[str]:
    from mlxchat.models.catalog import aliases

    return [f"aliases.{alias}" for alias in aliases()]
