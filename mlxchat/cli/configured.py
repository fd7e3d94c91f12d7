"""Commands whose options can be configured: a prompt (`-p`), the environment and the file set what
no flag does.

An option's name is its first long flag without dashes, `max-kv-size`; its key begins with the
command, `chat.max-kv-size`.
"""

import os
from collections.abc import Iterable, MutableMapping
from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.core import TyperOption
from typer.exceptions import TyperException

from mlxchat.cli.completion import complete_prompt
from mlxchat.cli.group import Command
from mlxchat.cli.options import COMMANDS, given_names
from mlxchat.cli.usage_errors import in_words, refuse_run_together
from mlxchat.config.file import (
    MODEL_VARIABLE,
    TEXT,
    ConfigFile,
    Setting,
    nearest,
    read_user_config,
    variables_for,
)
from mlxchat.errors import ConfigError, UsageError
from mlxchat.options import Panel

PromptName = Annotated[
    str | None,
    typer.Option(
        "-p",
        "--prompt",
        metavar="NAME",
        help="Use a prompt of the configuration",
        show_default=False,
        rich_help_panel=Panel.INPUT,
        autocompletion=complete_prompt,
    ),
]


EPILOG = """
Configuration:
  Every option can be configured: set the variable MLXCHAT_{}_MAX_KV_SIZE,
  or run `mlxchat config set {}.max-kv-size 4096`. `mlxchat config show {}`
  shows the current values.

Exit status: mlxchat --help-all
"""


class Configured(Command):
    """`batch`, `chat` and `generate`: the configuration sets the options that are not given."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, **settings)
        assert self.epilog is not None
        self.epilog += EPILOG.format(name.upper(), name, name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Completion needs only names, and must not fail on a broken file.
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        refuse_run_together(args, ctx)
        wrong: ConfigError | None = None
        try:
            settings = configured(self, ctx)
            ctx.default_map = {name: each.value for name, each in settings.items()}
        except ConfigError as error:
            # Help still works, and an error in the command line comes first.
            wrong = error
        rest = super().parse_args(ctx, args)
        if wrong is not None:
            raise wrong
        return rest


def configurable(command: Any) -> dict[str, TyperOption]:
    """The configurable options by name: all except those that show something and exit, such as
    --help."""
    return {
        next(flag for flag in each.opts if flag.startswith("--")).removeprefix("--"): each
        for each in command.params
        if isinstance(each, TyperOption) and not each.is_eager
    }


def keys_of(root: Any) -> list[str]:
    """All keys of the program, of which `root` is the group, except those of aliases, which users
    choose."""
    return [
        "model",
        *(f"{name}.{each}" for name in COMMANDS for each in configurable(root.commands[name])),
    ]


def configured(command: Any, context: Any) -> dict[str, Setting]:
    """The configured values of the command's options, checked, by parameter. Raises ConfigError.

    `models.resolve` handles the model for all commands, since it reports where its name comes from.
    """
    found = checked(command, read_user_config().settings_for(command.name), context)
    if os.environ.get(MODEL_VARIABLE):
        found.pop("model", None)
    return found | checked(command, variables_for(command.name), context)


def take_prompt(
    context: typer.Context, name: str | None, values: MutableMapping[str, Any]
) -> tuple[str | None, frozenset[str]]:
    """The text of the prompt, empty if it has none, and the fields that it sets; None without a
    name. Its options become values, except those given on the command line. Raises UsageError,
    ConfigError."""
    if name is None:
        return None, frozenset()
    settings = read_user_config().prompt(name)
    text = settings.pop(TEXT, None)
    found = checked(context.command, settings.values(), context)
    given = given_names(context)
    values.update({field: each.value for field, each in found.items() if field not in given})
    return "" if text is None else text.value, frozenset(found)


def check_file(file: ConfigFile, root: Any, context: Any) -> None:
    """Raise ConfigError for a value that no command of the group `root` accepts."""
    for name in COMMANDS:
        checked(root.commands[name], file.settings_for(name), context)
    commands = [root.commands[name] for name in ("generate", "chat")]
    for name in file.prompts:
        for key, setting in file.prompt(name).items():
            if key != TEXT:
                having = [each for each in commands if key in configurable(each)]
                checked((having or commands)[0], [setting], context)


def checked(command: Any, settings: Iterable[Setting], context: Any) -> dict[str, Setting]:
    """The settings by parameter, with values of the options' own types. Raises ConfigError, with
    its place, for an option that the command does not have, and an invalid value."""
    options = configurable(command)
    found: dict[str, Setting] = {}
    for setting in settings:
        name = setting.key.rpartition(".")[2]
        if name not in options:
            raise ConfigError(
                f"{setting.where}: {setting.key} is not an option of {command.name}"
                + nearest(name, options)
            )
        try:
            value = option_value(command, options[name], setting.value, context)
        except UsageError as error:
            raise setting.wrong(error) from error
        found[str(options[name].name)] = replace(setting, value=value)
    return found


def option_value(command: Any, option: TyperOption, written: Any, context: Any) -> Any:
    """The value in the option's own type, from a file or a variable. Raises UsageError."""
    if isinstance(written, list) and not option.multiple:
        raise UsageError("it takes one value, not a list")
    if isinstance(written, bool) and not option.is_flag:
        raise UsageError(f"it takes a value, not {str(written).lower()}")
    if option.multiple and not isinstance(written, list):
        written = [written]
    try:
        value = option.process_value(context, written)
    except TyperException as error:
        raise UsageError(in_words(error.message)) from error
    declared = COMMANDS[command.name].get(str(option.name))
    if declared is not None:
        declared.value_of(value)
    return value
