"""`mlxchat config` and `mlxchat prompts`: show and change the configuration."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from mlxchat.cli.completion import Names, complete_prompt, quietly
from mlxchat.cli.configured import check_file, configurable, configured, keys_of, option_value
from mlxchat.cli.group import App
from mlxchat.cli.options import COMMANDS, Json
from mlxchat.config.file import (
    TEXT,
    Setting,
    check_text,
    configured_model,
    nearest,
    read_text,
    read_user_config,
)
from mlxchat.errors import ConfigError, MlxchatError, UsageError
from mlxchat.terminal.table import write, write_json_lines, write_table

config_app = App(
    help="Show and change the configuration.",
    no_args_is_help=True,
    epilog="""\
Examples:
  mlxchat config set model qwen3-4b
  mlxchat config set chat.max-kv-size 4096
  mlxchat config show chat

Precedence: the flag, then the variable, such as MLXCHAT_CHAT_TEMP, then your
config.toml.
""",
)

prompts_app = App(
    help="List, show and edit prompts of your own.",
    no_args_is_help=True,
    epilog="""\
Examples:
  mlxchat prompts edit
  mlxchat prompts list
  git diff | mlxchat -p commit
""",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Prompt", autocompletion=complete_prompt)]

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
# [generate]
# temp = 0.7
"""

NO_MODEL = "a recommended one that fits, else the embedded one"


@quietly
def complete_key(context: typer.Context, incomplete: str) -> Names:
    """Keys, and the tables that `config show` takes, too."""
    aliases = (f"aliases.{alias}" for alias in read_user_config().aliases)
    return [*COMMANDS, *keys_of(_root(context)), *aliases]


@config_app.command(epilog="Example: mlxchat config show chat.max-kv-size")
def show(
    context: typer.Context,
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="Key, such as chat.temp, or table, such as chat",
            autocompletion=complete_key,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show all settings in effect, and where they come from.

    A value in parentheses describes the default. In a pipe, each line has key, value and source,
    separated by tabs.
    """
    rows = list(_rows(context))
    if key is not None:
        rows = _chosen(rows, key)
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
        typer.Argument(
            metavar="VALUE…",
            help="Several values only for a repeatable option",
        ),
    ] = None,
    unset: Annotated[
        bool, typer.Option("--unset", help="Remove the key", show_default=False)
    ] = False,
) -> None:
    """Set or remove a key in the configuration file.

    The value is checked like that of the option; comments and other keys stay.
    """
    from mlxchat import paths
    from mlxchat.config.edit import set_key
    from mlxchat.terminal.output import Messages

    path = paths.config_file()
    if unset:
        if values:
            raise UsageError(f"--unset takes no VALUE, got {values[0]!r}")
        # An invalid key can be removed, too.
        if not set_key(path, tuple(key.split(".", 1)), None):
            _parsed(context, key)
            Messages().warn(f"{key} is not set in {path}")
    elif not values:
        raise UsageError(f"{key} needs a VALUE, or --unset to remove it")
    else:
        names = _parsed(context, key)
        set_key(path, names, _checked(context, names, values))
        try:
            row = next((row for row in _rows(context) if row["key"] == key), None)
        except ConfigError as error:
            Messages().warn(f"set in {path}, but: {error}")
            return
        Messages().note(f"set in {path}")
        if row is not None and row["where"] != str(path):
            Messages().warn(f"{row['where']} overrides it: {key} is {_as_text(row)}")


@config_app.command(epilog="Example: EDITOR=nano mlxchat config edit")
@prompts_app.command(epilog="Example: EDITOR=nano mlxchat prompts edit")
def edit(context: typer.Context) -> None:
    """Edit the configuration file with $VISUAL or $EDITOR.

    You edit a copy, which replaces the file if it has no errors. A prompt NAME is a table
    [prompts.NAME] with the key prompt, in which {input} is the place of the input, and any options
    of `mlxchat generate`.
    """
    from mlxchat import paths
    from mlxchat.config.edit import install
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
        file = check_text(path, edited)
        check_file(file, _root(context), context)
        install(path, edited, instead_of=text)
    except MlxchatError:
        Messages().warn(f"{path} is unchanged; your edits are in {_kept(edited)}")
        raise
    Messages().note(f"written to {path}")


@config_app.command(epilog="Example: cat $(mlxchat config path)")
def path() -> None:
    """Show the path of the configuration file.

    The file may not exist yet.
    """
    from mlxchat import paths

    write(f"{paths.config_file()}\n")


# Prompts


@prompts_app.command("list", epilog="Example: mlxchat prompts list --json")
def list_prompts(as_json: Json = False) -> None:
    """List the prompts that are configured here.

    In a pipe, each line has the columns of the table, separated by tabs.
    """
    found = dict(sorted(read_user_config().prompts.items()))
    if as_json:
        write_json_lines({"name": name, **values} for name, values in found.items())
        return
    rows = [(name, " ".join(str(each.get(TEXT, "")).split())) for name, each in found.items()]
    write_table(("NAME", "PROMPT"), rows, cut=("PROMPT",))


@prompts_app.command("show", epilog="Example: mlxchat prompts show commit")
def show_prompt(name: Name) -> None:
    """Print a prompt and its options."""
    import tomlkit

    prompt = read_user_config().prompt(name)
    write(tomlkit.dumps({"prompts": {name: {key: each.value for key, each in prompt.items()}}}))


# Settings in effect


def _rows(context: typer.Context) -> Iterator[dict[str, Any]]:
    """The settings in effect; if "value" is None, "if_unset" describes the default."""
    model, file = configured_model(), read_user_config()
    yield _row("model", model, model.value if model else None, NO_MODEL)
    for alias, target in sorted(file.aliases.items()):
        yield _row(f"aliases.{alias}", Setting(alias, target, str(file.path)), target)
    for name in COMMANDS:
        command = _root(context).commands[name]
        settings = configured(command, context)
        for option_name, option in configurable(command).items():
            setting = settings.get(str(option.name))
            value = option.default if setting is None else setting.value
            if setting is None and option_name == "model" and model is not None:
                setting, value = model, model.value
            if_unset = option.show_default if isinstance(option.show_default, str) else "none"
            yield _row(f"{name}.{option_name}", setting, value, if_unset)


def _row(key: str, setting: Setting | None, value: Any, if_unset: str = "") -> dict[str, Any]:
    where = None if setting is None else setting.where
    return {"key": key, "value": value, "if_unset": if_unset, "where": where}


def _chosen(rows: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """The row of a key, or the rows of a table. Raises UsageError."""
    found = [row for row in rows if row["key"] == key or row["key"].startswith(f"{key}.")]
    if not found:
        raise UsageError(f"unknown key {key!r}" + _meant(key, [row["key"] for row in rows]))
    return found


def _as_text(row: dict[str, Any]) -> str:
    value = row["value"]
    if value is None:
        return f"({row['if_unset']})"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)


# Changing the file


def _parsed(context: typer.Context, text: str) -> tuple[str, ...]:
    """The key as a path of TOML tables. Raises UsageError."""
    table, _, name = text.partition(".")
    if text == "model" or (table == "aliases" and name):
        return (table, name) if name else (table,)
    if table in COMMANDS and name in configurable(_root(context).commands[table]):
        return table, name
    raise UsageError(f"unknown key {text!r}" + _meant(text, keys_of(_root(context))))


def _checked(context: typer.Context, key: tuple[str, ...], values: Sequence[str]) -> Any:
    """The value as TOML stores it. Raises UsageError, and ModelError for an unknown model."""
    dotted = ".".join(key)
    command = _root(context).commands.get(key[0])
    option = None if command is None else configurable(command)[key[1]]
    if len(values) > 1 and (option is None or not option.multiple):
        raise UsageError(f"{dotted} takes one value, got {len(values)}")
    if option is None or key[1] == "model":
        return _checked_model(key, values[0])
    try:
        written = list(values) if option.multiple else values[0]
        value = option_value(command, option, written, context)
    except UsageError as error:
        raise UsageError(f"{dotted}: {error}") from error
    if key[1] == "max-kv-size" and value.isdecimal():
        return int(value)
    # TOML stores an enumeration's member as text.
    return str(value) if isinstance(value, str) else value


def _checked_model(key: tuple[str, ...], name: str) -> str:
    """The name as valid from any directory. Raises ModelError, ConfigError."""
    from mlxchat.models.locate import lasting_name, locate

    aliases = dict(read_user_config().aliases)
    if key[0] == "aliases":
        locate(key[1], aliases | {key[1]: name})
    return lasting_name(name, aliases)


def _kept(text: str) -> str:
    """The path of a temporary file with the text."""
    from tempfile import NamedTemporaryFile

    with NamedTemporaryFile(
        "w", encoding="utf-8", prefix="mlxchat-", suffix=".toml", delete=False
    ) as file:
        file.write(text)
    return file.name


def _meant(text: str, valid: Sequence[str]) -> str:
    hint = nearest(text, valid)
    return hint if hint.startswith("; did") else ": `mlxchat config show` lists them"


def _root(context: typer.Context) -> Any:
    return context.find_root().command
