"""Commands whose options can be configured: what is set if no flag says otherwise.

An option is known by its first long name without dashes, `max-kv-size`, and its key has the
command before it, `chat.max-kv-size`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from typer.core import TyperCommand, TyperOption
from typer.exceptions import TyperException

from mlxchat.cli.options import COMMANDS
from mlxchat.config.layers import Config, Layer, Level, Setting, read_config
from mlxchat.errors import ConfigError, UsageError
from mlxchat.request import CHAT
from mlxchat.terminal.spelling import as_keys

# Options that a session has of its own.
OF_SESSIONS = {"system", *(each.name for each in CHAT.values() if each.saved)}

# What pydantic, by which Typer checks values, puts before what is wrong with one.
FROM_PYDANTIC = "Value error, "


class Configured(TyperCommand):
    """`chat` and `generate`: options that are not given come from the configuration."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Completion asks for names, and must not fail if a file is broken.
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        wrong: ConfigError | None = None
        try:
            settings = configured(self, read_config(), ctx)
            options = configurable(self)
            ctx.default_map = {options[name].name: each.value for name, each in settings.items()}
            ctx.meta[__name__] = settings
        except ConfigError as error:
            # Help is there all the same, and so is what is wrong with the command line.
            wrong = error
        rest = super().parse_args(ctx, args)
        if wrong is not None:
            raise wrong
        return rest

    def invoke(self, ctx: Any) -> Any:
        _report_project(self, ctx)
        return super().invoke(ctx)


def configurable(command: Any) -> dict[str, TyperOption]:
    """The options that can be configured, by the names that they are known by: all but those that
    only show something and end, as --version does."""
    return {
        _long_names(each)[0]: each
        for each in command.params
        if isinstance(each, TyperOption) and not each.is_eager
    }


def names_of(command: Any) -> dict[str, str]:
    """All names that the options can be written by, with those that they are known by."""
    return {
        name: known
        for known, option in configurable(command).items()
        for name in _long_names(option)
    }


def keys_of(root: Any) -> list[str]:
    """All keys of the program, whose group `root` is, but those of aliases, which are the user's
    to name."""
    return [
        "model",
        *(f"{name}.{each}" for name in COMMANDS for each in configurable(root.commands[name])),
    ]


def configured(command: Any, config: Config, context: Any) -> dict[str, Setting]:
    """What is set for the command's options, checked, in the form that Typer takes.

    The model for all commands is left to `models.resolve`, which knows where its name came from.
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
    """Raise ConfigError for what no command of the program, whose group `root` is, could take."""
    for command in COMMANDS:
        configured(root.commands[command], Config((layer,), {}), context)


def read_setting(option: TyperOption, name: str, setting: Setting, context: Any) -> Any:
    """The value of a setting by the option's own type. Raises ConfigError naming its place
    if the option cannot have it."""
    try:
        return option_value(option, name, setting.value, context)
    except UsageError as error:
        raise setting.wrong(as_keys(error)) from error


def option_value(option: TyperOption, name: str, written: Any, context: Any) -> Any:
    """What is written in a file, a variable or on the command line, as the option's own type.

    Raises UsageError for what the option cannot have.
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
        raise UsageError(error.message.removeprefix(FROM_PYDANTIC)) from error
    for options in COMMANDS.values():
        if option.name in options and options[option.name].name == name:
            options[option.name].value_of(value)
    return value


def _as_parameter(option: TyperOption, setting: Setting) -> Setting:
    """A single value of an option that can be repeated is a list of one."""
    if not option.multiple or isinstance(setting.value, list):
        return setting
    return replace(setting, value=[setting.value])


def _long_names(option: TyperOption) -> list[str]:
    return [flag.removeprefix("--") for flag in option.opts if flag.startswith("--")]


def _report_project(command: Any, context: Any) -> None:
    """Say what a project's file has decided: nobody here need know of it."""
    from mlxchat.terminal.messages import Messages

    settings: Mapping[str, Setting] = context.meta.get(__name__, {})
    options = configurable(command)
    followed = {
        name: setting
        for name, setting in settings.items()
        if setting.level is Level.PROJECT
        and context.get_parameter_source(options[name].name).name == "DEFAULT_MAP"
    }
    if not followed:
        return
    resumes = context.params.get("latest") or context.params.get("session")
    perhaps = [each.key for name, each in followed.items() if resumes and name in OF_SESSIONS]
    parts = [", ".join(each.key for each in followed.values() if each.key not in perhaps)]
    if perhaps:
        parts.append(f"if the session has none of its own, {', '.join(perhaps)}")
    where = next(iter(followed.values())).where
    Messages(context.params["quiet"]).warn(f"{where} sets {'; '.join(filter(None, parts))}")
