"""`-p NAME`: a prompt of the configuration, and the options that come with it."""

from collections.abc import MutableMapping
from typing import Annotated, Any

import typer

from mlxchat.cli.completion import complete_prompt
from mlxchat.cli.configured import configurable, option_of, read_setting
from mlxchat.cli.options import given_names
from mlxchat.config.file import TEXT, ConfigFile, read_user_config
from mlxchat.config.precedence import prompt_in
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

# The commands that have -p.
WITH_PROMPTS = ("generate", "chat")


def take_prompt(
    context: typer.Context, name: str | None, values: MutableMapping[str, Any]
) -> tuple[str | None, frozenset[str]]:
    """The text of the prompt, empty if it has none, and the fields that it sets; None without a
    name. Its options become values, except those given on the command line. Raises UsageError,
    ConfigError."""
    if name is None:
        return None, frozenset()
    settings = prompt_in(read_user_config(), name)
    text = settings.pop(TEXT, None)
    given = given_names(context)
    fields: set[str] = set()
    for setting in settings.values():
        option = option_of(context.command, setting)
        value = read_setting(context.command, option, setting, context)
        fields.add(str(option.name))
        if option.name not in given:
            values[str(option.name)] = value
    return "" if text is None else text.value, frozenset(fields)


def check_prompts(file: ConfigFile, root: Any, context: Any) -> None:
    """Raise ConfigError for an option of a prompt that no command has, or a wrong value."""
    commands = [root.commands[name] for name in WITH_PROMPTS]
    for name in file.prompts:
        for key, setting in prompt_in(file, name).items():
            if key != TEXT:
                having = [each for each in commands if key in configurable(each)]
                command = (having or commands)[0]
                read_setting(command, option_of(command, setting), setting, context)
