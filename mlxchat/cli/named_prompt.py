"""`-p NAME`: a prompt of the configuration, and the options that come with it."""

from collections.abc import MutableMapping
from typing import Annotated, Any

import typer

from mlxchat.cli.completion import complete_prompt
from mlxchat.cli.configured import configurable, names_of, read_setting
from mlxchat.cli.options import given_names
from mlxchat.config.file import TEXT, nearest
from mlxchat.config.layers import Layer, Setting, read_config
from mlxchat.errors import ConfigError
from mlxchat.options import Group

PromptName = Annotated[
    str | None,
    typer.Option(
        "-p",
        "--prompt",
        metavar="NAME",
        help="Use a prompt of the configuration",
        show_default=False,
        rich_help_panel=Group.INPUT,
        autocompletion=complete_prompt,
    ),
]

# The commands that have -p.
WITH_PROMPTS = ("chat", "generate")


def take_prompt(
    context: typer.Context, name: str | None, values: MutableMapping[str, Any]
) -> str | None:
    """The text of the prompt, empty if it has none; None without a name. Its options become values,
    except those given on the command line. Raises UsageError, ConfigError."""
    if name is None:
        return None
    settings = dict(read_config().prompt(name))
    text = settings.pop(TEXT, None)
    given = given_names(context)
    for key, setting in settings.items():
        option = _option_of(context.command, key, setting)
        value = read_setting(option, key, setting, context)
        if option.name not in given:
            values[option.name] = value
    return "" if text is None else text.value


def prompt_fields(context: typer.Context, name: str | None) -> frozenset[str]:
    """The fields that the prompt's options set."""
    if name is None:
        return frozenset()
    keys = read_config().prompt(name).keys() - {TEXT}
    names, options = names_of(context.command), configurable(context.command)
    return frozenset(str(options[names[key]].name) for key in keys)


def check_prompts(layer: Layer, root: Any, context: Any) -> None:
    """Raise ConfigError for an option of a prompt that no command has, or a wrong value."""
    commands = [root.commands[name] for name in WITH_PROMPTS]
    for prompt in layer.prompts.values():
        for key, setting in prompt.items():
            if key == TEXT:
                continue
            having = [each for each in commands if key in names_of(each)]
            command = (having or commands)[-1]
            read_setting(_option_of(command, key, setting), key, setting, context)


def _option_of(command: Any, key: str, setting: Setting) -> Any:
    names = names_of(command)
    if key not in names:
        raise ConfigError(
            f"{setting.where}: {setting.key} is not an option of {command.name}"
            + nearest(key, names)
        )
    return configurable(command)[names[key]]
