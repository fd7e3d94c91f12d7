"""Commands whose options can be configured: a prompt (`-p`), the environment and the file set what
no flag does.

An option's name is its first long flag without dashes, `max-kv-size`; its key begins with the
command, `chat.max-kv-size`.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.core import TyperOption
from typer.exceptions import TyperException

from mlxchat.cli.group import Command
from mlxchat.cli.options import COMMANDS, PROMPT_FIELDS
from mlxchat.cli.usage_errors import refuse_run_together
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
        refuse_run_together(args, self)
        wrong: ConfigError | None = None
        try:
            _set_defaults(ctx, configured(self, ctx))
        except ConfigError as error:
            # Help still works, and an error in the command line comes first.
            wrong = error
        rest = super().parse_args(ctx, args)
        if wrong is not None:
            raise wrong
        return rest


def _use_prompt(context: typer.Context, name: str | None) -> str | None:
    """The prompt's text, empty if it has none; its options become defaults. Raises UsageError,
    ConfigError."""
    if name is None or context.resilient_parsing:
        return None
    settings = read_user_config().prompt(name)
    text = settings.pop(TEXT, None)
    found = checked(context.command, settings.values(), context)
    _set_defaults(context, found)
    context.meta[PROMPT_FIELDS] = frozenset(found)
    return "" if text is None else text.value


def _set_defaults(context: Any, settings: dict[str, Setting]) -> None:
    values = {name: each.value for name, each in settings.items()}
    context.default_map = {**(context.default_map or {}), **values}


# What a command gets for the option is the text of the prompt.
Template = Annotated[
    str | None,
    typer.Option(
        *("-p", "--prompt"),
        metavar="NAME",
        help="Use a prompt of the configuration",
        show_default=False,
        rich_help_panel=Panel.INPUT,
        autocompletion=lambda incomplete: sorted(read_user_config().prompts),
        is_eager=True,
        callback=_use_prompt,
    ),
]


def configurable(command: Any) -> dict[str, TyperOption]:
    """The configurable options by name: all except --prompt, --help and the like."""
    return {
        next(flag for flag in each.opts if flag.startswith("--")).removeprefix("--"): each
        for each in command.params
        if isinstance(each, TyperOption) and not each.is_eager
    }


def keys_of(root: Any) -> list[str]:
    """All keys of the program, of which `root` is the group, except those that users choose."""
    return [
        "model",
        *(f"{name}.{each}" for name in COMMANDS for each in configurable(root.commands[name])),
    ]


def configured(command: Any, context: Any) -> dict[str, Setting]:
    """The configured values of the command's options, checked, by parameter. Raises ConfigError.

    `models.resolve` handles the model for all commands, since it reports where its name comes from.
    """
    found = checked(command, read_user_config().settings_for(command.name).values(), context)
    if os.environ.get(MODEL_VARIABLE):
        found.pop("model", None)
    return found | checked(command, variables_for(command.name), context)


def check_file(file: ConfigFile, root: Any, context: Any) -> None:
    """Raise ConfigError for a value that no command of the group `root` accepts."""
    for name in COMMANDS:
        checked(root.commands[name], file.settings_for(name).values(), context)
    for prompt in file.prompts:
        for key, setting in file.prompt(prompt).items():
            if key != TEXT:
                name = "chat" if key in configurable(root.commands["chat"]) else "generate"
                checked(root.commands[name], [setting], context)


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
        raise UsageError(error.message) from error
    declared = COMMANDS[command.name].get(str(option.name))
    if declared is not None:
        declared.value_of(value)
    return value
