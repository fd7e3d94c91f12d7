"""`mlxchat config`: show and change the configuration."""

import json
from collections.abc import Iterator
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

import typer

from mlxchat import paths
from mlxchat.cli.group import DASHES, App
from mlxchat.config import (
    KEYS,
    OPTION_KEYS,
    Setting,
    check_text,
    configured,
    configured_model,
    install,
    nearest,
    read_text,
    read_user_config,
    set_key,
)
from mlxchat.errors import MlxchatError, UsageError
from mlxchat.request.commands import COMMANDS
from mlxchat.terminal.table import write, write_table

config_app = App(
    help="Show and change the configuration, with prompts of your own.",
    epilog="""\
Examples:
  mlxchat config set model qwen3-4b
  mlxchat config set chat.max-kv-size 4096

Precedence: the flag, then the variable, such as MLXCHAT_CHAT_TEMP, then your
config.toml.
""",
)

NEW_FILE = "# Defaults of mlxchat. `mlxchat help configuration` has examples.\n"


def complete_key(incomplete: str) -> list[str]:
    """Keys, and the tables that `config show` takes."""
    tables = read_user_config().contents
    own = (f"{name}.{each}" for name in ("aliases", "prompts") for each in tables.get(name, ()))
    return ["model", *COMMANDS, "prompts", *OPTION_KEYS, *own]


FORMS = "model, chat.OPTION, aliases.NAME, prompts.NAME.OPTION"
Key = Annotated[str, typer.Argument(metavar="KEY", help=FORMS, autocompletion=complete_key)]


@config_app.command(epilog="Example: mlxchat config show chat.max-kv-size")
def show(key: Key = "") -> None:
    """Show all settings in effect, and where they come from.

    A key such as chat shows all of its table. A value in parentheses describes the default. In a
    pipe, each line has key, value and source, separated by tabs.
    """
    everything = list(_rows())
    rows = [row for row in everything if not key or f"{row[0]}.".startswith(f"{key}.")]
    if key and not rows and key not in ("aliases", "prompts"):
        raise UsageError(f"unknown key {key!r}" + nearest(key, [row[0] for row in everything]))
    write_table(("KEY", "VALUE", "FROM"), rows)


@config_app.command(
    "set", epilog="Example: mlxchat config set chat.max-kv-size 4096", context_settings=DASHES
)
def set_value(
    key: Key,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE…", help="Several values only for a repeatable option"),
    ] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Remove the key")] = False,
) -> None:
    """Set or remove a key in the configuration file.

    The value is checked like that of the option; comments and other keys stay.
    """
    from mlxchat.terminal.output import Messages

    path, names = paths.config_file(), tuple(key.split(".", KEYS.get(key.split(".")[0], 1)))
    if unset == bool(values):
        raise UsageError(f"{key} needs either a VALUE, or --unset to remove it")
    if values and values[0] and (names[-1] == "model" or names[0] == "aliases" != key):
        values[0] = _lasting_model(names, values[0])
    if set_key(path, names, values or []) or values:
        Messages().note(f"{'set in' if values else 'removed from'} {path}")
    else:
        Messages().warn(f"{key} is not set in {path}")


@config_app.command(epilog="Example: EDITOR=nano mlxchat config edit")
def edit() -> None:
    """Edit the configuration file with $VISUAL or $EDITOR.

    You edit a copy, which replaces the file if it has no errors. A prompt NAME is a table
    [prompts.NAME] with the key prompt, a text with {input}, and options of the command in use.
    """
    from mlxchat.terminal.editor import edit as edited_text
    from mlxchat.terminal.output import Messages
    from mlxchat.terminal.worker import ctrl_c_ignored

    path = paths.config_file()
    text = read_text(path)
    with ctrl_c_ignored():
        edited = edited_text(text or NEW_FILE, "config.toml")
    if edited == (text or NEW_FILE).removesuffix("\n"):
        Messages().note(f"{path} is unchanged")
        check_text(path, text)
        return
    edited = f"{edited}\n" if edited else ""
    try:
        check_text(path, edited)
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


def _rows() -> Iterator[tuple[str, str, str]]:
    """Key, value and source of the settings in effect."""
    model, file = configured_model(), read_user_config()
    yield "model", *_shown(model, "a recommended one that fits, else the embedded one")
    for tables in (("aliases",), *(("prompts", name) for name in sorted(file.prompts))):
        for key, setting in sorted(file.settings_for(*tables).items()):
            yield ".".join((*tables, key)), *_shown(setting)
    for name, options in COMMANDS.items():
        settings = configured(name)
        for field, option in options.items():
            setting = settings.get(field, model if field == "model" else None)
            shown = _shown(setting, option.if_unset or "none", option.default)
            yield f"{name}.{option.name}", *shown


def _shown(setting: Setting | None, if_unset: str = "", default: Any = None) -> tuple[str, str]:
    """The value and its source; `if_unset` describes a default that is none."""
    if setting is None and default in (None, ()):
        return f"({if_unset})", "default"
    value, where = (default, "default") if setting is None else (setting.value, setting.where)
    value = "off" if value == -1 == default else value
    is_json = isinstance(value, bool | list) or "\n" in str(value)
    return json.dumps(value, ensure_ascii=False) if is_json else str(value), where


def _lasting_model(key: tuple[str, ...], name: str) -> str:
    """The name as valid from any directory. Raises ModelError, ConfigError."""
    from mlxchat.models.resolve import locate

    aliases = dict(read_user_config().aliases)
    if key[0] == "aliases":
        locate(key[1], aliases | {key[1]: name})
    located = locate(name, aliases)
    return name if name in aliases else located.name
