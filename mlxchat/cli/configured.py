"""Commands whose options can be configured: a prompt (`-p`), the environment and the file set what
no flag does."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from mlxchat.cli.group import Command
from mlxchat.cli.options import PROMPT_FIELDS
from mlxchat.cli.usage_errors import refuse_run_together
from mlxchat.config import TEXT, Setting, by_field, configured, read_user_config
from mlxchat.errors import ConfigError

EPILOG = """
Every option can be configured: mlxchat help configuration
Variables and exit statuses: mlxchat help files
"""


class Configured(Command):
    """`batch`, `chat` and `generate`: the configuration sets the options that are not given."""

    def __init__(self, name: str, *, epilog: str, **settings: Any) -> None:
        super().__init__(name, epilog=epilog + EPILOG, **settings)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Completion needs only names, and must not fail on a broken file.
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        refuse_run_together(args, self)
        wrong: ConfigError | None = None
        try:
            _set_defaults(ctx, configured(str(self.name)))
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
    found = by_field(str(context.command.name), settings.values())
    _set_defaults(context, found)
    context.meta[PROMPT_FIELDS] = frozenset(found)
    return "" if text is None else text.value


def _set_defaults(context: Any, settings: Mapping[str, Setting]) -> None:
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
        autocompletion=lambda incomplete: sorted(read_user_config().prompts),
        is_eager=True,
        callback=_use_prompt,
    ),
]
