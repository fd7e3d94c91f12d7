"""`mlxchat config`: show and change the configuration."""

import json
from collections.abc import Iterator
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

import typer

from mlxchat import paths
from mlxchat.cli.configured import check_file, configurable, configured, keys_of, option_value
from mlxchat.cli.group import App
from mlxchat.cli.options import COMMANDS, Json
from mlxchat.config.file import (
    Setting,
    check_text,
    configured_model,
    install,
    nearest,
    read_text,
    read_user_config,
    set_key,
)
from mlxchat.errors import MlxchatError, UsageError
from mlxchat.terminal.table import write, write_json_lines, write_table

config_app = App(
    help="Show and change the configuration, with prompts of your own.",
    epilog="""\
Examples:
  mlxchat config set model qwen3-4b
  mlxchat config set chat.max-kv-size 4096
  mlxchat config show chat

Precedence: the flag, then the variable, such as MLXCHAT_CHAT_TEMP, then your
config.toml.
""",
)

NEW_FILE = """\
# Defaults of mlxchat. `mlxchat config show` lists all keys.
#
# model = "qwen3-4b"
#
# [aliases]
# small = "mlx-community/Qwen3-0.6B-4bit"
#
# [chat]
# max-kv-size = 4096
#
# [prompts.commit]
# prompt = "Write a commit message for this change: {input}"
"""

NO_MODEL = "a recommended one that fits, else the embedded one"


def complete_key(context: typer.Context, incomplete: str) -> list[str]:
    """Keys, and the tables that `config show` takes, too."""
    aliases = (f"aliases.{alias}" for alias in read_user_config().aliases)
    return [*COMMANDS, "prompts", *keys_of(context.find_root().command), *aliases]


@config_app.command(epilog="Example: mlxchat config show chat.max-kv-size")
def show(
    context: typer.Context,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="Key, such as chat.temp, or table, such as chat",
            autocompletion=complete_key,
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Show all settings in effect, and where they come from.

    A value in parentheses describes the default. In a pipe, each line has key, value and source,
    separated by tabs.
    """
    everything = list(_rows(context))
    rows = [row for row in everything if not key or f"{row['key']}.".startswith(f"{key}.")]
    if key and not rows:
        raise UsageError(f"unknown key {key!r}" + nearest(key, [row["key"] for row in everything]))
    if as_json:
        write_json_lines(rows)
    else:
        cells = [(row["key"], _as_text(row), row["where"] or "default") for row in rows]
        write_table(("KEY", "VALUE", "FROM"), cells)


@config_app.command(
    "set",
    epilog="Example: mlxchat config set chat.max-kv-size 4096",
    # So that a negative number is a value.
    context_settings={"ignore_unknown_options": True},
)
def set_value(
    context: typer.Context,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="model, aliases.NAME, chat.OPTION or generate.OPTION",
            autocompletion=complete_key,
        ),
    ],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE…", help="Several values only for a repeatable option"),
    ] = None,
    unset: Annotated[
        bool, typer.Option("--unset", help="Remove the key", show_default=False)
    ] = False,
) -> None:
    """Set or remove a key in the configuration file.

    The value is checked like that of the option; comments and other keys stay.
    """
    from mlxchat.terminal.output import Messages

    path = paths.config_file()
    names = tuple(key.split(".", 1))
    if unset == bool(values):
        raise UsageError(f"{key} needs either a VALUE, or --unset to remove it")
    if values:
        set_key(path, names, _checked(context, names, values))
        Messages().note(f"set in {path}")
    # An invalid key can be removed, too.
    elif not set_key(path, names, None):
        Messages().warn(f"{key} is not set in {path}")


@config_app.command(epilog="Example: EDITOR=nano mlxchat config edit")
def edit(context: typer.Context) -> None:
    """Edit the configuration file with $VISUAL or $EDITOR.

    You edit a copy, which replaces the file if it has no errors. A prompt NAME is a table
    [prompts.NAME] with the key prompt, in which {input} is the place of the input, and any options
    of `mlxchat generate`.
    """
    from mlxchat.terminal.output import Messages
    from mlxchat.terminal.plain_input import edit as edited_text
    from mlxchat.terminal.worker import ctrl_c_ignored

    path = paths.config_file()
    text = read_text(path)
    with ctrl_c_ignored():
        edited = edited_text(text or NEW_FILE, "config.toml")
    if edited == (text or NEW_FILE).removesuffix("\n"):
        Messages().note(f"{path} is unchanged")
        return
    edited = f"{edited}\n" if edited else ""
    try:
        check_file(check_text(path, edited), context.find_root().command, context)
        install(path, edited, instead_of=text)
    except MlxchatError:
        how: dict[str, Any] = {"prefix": "mlxchat-", "suffix": ".toml", "delete": False}
        with NamedTemporaryFile("w", encoding="utf-8", **how) as file:
            file.write(edited)
        Messages().warn(f"{path} is unchanged; your edits are in {file.name}")
        raise
    Messages().note(f"written to {path}")


@config_app.command(epilog="Example: cat $(mlxchat config path)")
def path() -> None:
    """Show the path of the configuration file.

    The file may not exist yet.
    """
    write(f"{paths.config_file()}\n")


def _rows(context: typer.Context) -> Iterator[dict[str, Any]]:
    """The settings in effect; if "value" is None, "if_unset" describes the default."""
    model, file = configured_model(), read_user_config()
    yield _row("model", model, None, NO_MODEL)
    for tables in (("aliases",), *(("prompts", name) for name in sorted(file.prompts))):
        for _, setting in sorted(file.settings_for(*tables).items()):
            yield _row(setting.key, setting)
    root: Any = context.find_root().command
    for name in COMMANDS:
        settings = configured(root.commands[name], context)
        for option_name, option in configurable(root.commands[name]).items():
            setting = settings.get(str(option.name), model if option_name == "model" else None)
            if_unset = option.show_default if isinstance(option.show_default, str) else "none"
            yield _row(f"{name}.{option_name}", setting, option.default, if_unset)


def _row(
    key: str, setting: Setting | None, default: Any = None, if_unset: str = ""
) -> dict[str, Any]:
    value, where = (default, None) if setting is None else (setting.value, setting.where)
    return {"key": key, "value": value, "if_unset": if_unset, "where": where}


def _as_text(row: dict[str, Any]) -> str:
    value = row["value"]
    if value is None:
        return f"({row['if_unset']})"
    if isinstance(value, bool | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _checked(context: typer.Context, key: tuple[str, ...], values: list[str]) -> Any:
    """The value as TOML stores it. Raises UsageError, and ModelError for an unknown model."""
    root: Any = context.find_root().command
    dotted = ".".join(key)
    is_model = key == ("model",) or key[0] == "aliases"
    if not (dotted in keys_of(root) or (is_model and len(key) == 2)):
        raise UsageError(f"unknown key {dotted!r}{nearest(dotted, keys_of(root))}")
    option = None if is_model else configurable(root.commands[key[0]])[key[1]]
    if len(values) > 1 and (option is None or not option.multiple):
        raise UsageError(f"{dotted} takes one value, got {len(values)}")
    if option is None or key[1] == "model":
        return _checked_model(key, values[0])
    written = values if option.multiple else values[0]
    try:
        value = option_value(root.commands[key[0]], option, written, context)
    except UsageError as error:
        raise UsageError(f"{dotted}: {error}") from error
    # TOML stores an enumeration's member as text.
    return str(value) if isinstance(value, str) else value


def _checked_model(key: tuple[str, ...], name: str) -> str:
    """The name as valid from any directory. Raises ModelError, ConfigError."""
    from mlxchat.models.locate import lasting_name, locate

    aliases = dict(read_user_config().aliases)
    if key[0] == "aliases":
        locate(key[1], aliases | {key[1]: name})
    return lasting_name(name, aliases)
