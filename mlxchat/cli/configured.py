"""Commands whose options can be configured: environment and files set what no flag does.

An option's name is its first long flag without dashes, `max-kv-size`; its key begins with the
command, `chat.max-kv-size`.
"""

from dataclasses import replace
from typing import Any

from typer.core import TyperOption
from typer.exceptions import TyperException

from mlxchat.cli.group import Command
from mlxchat.cli.options import COMMANDS
from mlxchat.cli.usage_errors import in_words, refuse_run_together
from mlxchat.config.layers import Config, Layer, Setting, read_config
from mlxchat.errors import ConfigError, UsageError


class Configured(Command):
    """`batch`, `chat` and `generate`: the configuration sets the options that are not given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Completion needs only names, and must not fail on a broken file.
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        refuse_run_together(args, ctx)
        wrong: ConfigError | None = None
        try:
            settings = configured(self, read_config(), ctx)
            options = configurable(self)
            ctx.default_map = {options[name].name: each.value for name, each in settings.items()}
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
        _long_names(each)[0]: each
        for each in command.params
        if isinstance(each, TyperOption) and not each.is_eager
    }


def names_of(command: Any) -> dict[str, str]:
    """Every spelling of the options, with the name it stands for."""
    return {
        name: known
        for known, option in configurable(command).items()
        for name in _long_names(option)
    }


def keys_of(root: Any) -> list[str]:
    """All keys of the program, of which `root` is the group, except those of aliases, which users
    choose."""
    return [
        "model",
        *(f"{name}.{each}" for name in COMMANDS for each in configurable(root.commands[name])),
    ]


def configured(command: Any, config: Config, context: Any) -> dict[str, Setting]:
    """The configured values of the command's options, checked, as Typer takes them.

    `models.resolve` handles the model for all commands, since it reports where its name comes from.
    Raises ConfigError.
    """
    settings = {
        name: setting
        for name, setting in config.settings(command.name, names_of(command)).items()
        if setting.key != "model"
    }
    options = configurable(command)
    for name, setting in settings.items():
        read_setting(options[name], name, setting, context)
    return {name: _as_parameter(options[name], each) for name, each in settings.items()}


def check_layer(layer: Layer, root: Any, context: Any) -> None:
    """Raise ConfigError for a value that no command of the group `root` accepts."""
    for command in COMMANDS:
        configured(root.commands[command], Config((layer,), {}), context)


def read_setting(option: TyperOption, name: str, setting: Setting, context: Any) -> Any:
    """The value of a setting in the option's own type. Raises ConfigError naming its place if it is
    invalid."""
    try:
        return option_value(option, name, setting.value, context)
    except UsageError as error:
        raise setting.wrong(str(error)) from error


def option_value(option: TyperOption, name: str, written: Any, context: Any) -> Any:
    """The option's value, from a file, a variable or the command line.

    Raises UsageError if it is invalid.
    """
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
    for options in COMMANDS.values():
        if option.name in options and options[option.name].name == name:
            options[option.name].value_of(value)
    return value


def _as_parameter(option: TyperOption, setting: Setting) -> Setting:
    """Wrap a single value of a repeatable option in a list."""
    if not option.multiple or isinstance(setting.value, list):
        return setting
    return replace(setting, value=[setting.value])


def _long_names(option: TyperOption) -> list[str]:
    return [flag.removeprefix("--") for flag in option.opts if flag.startswith("--")]
