"""Declared options as Typer options, those that several commands have, what Tab completes, and what
a prompt (`-p`), the environment and the file set.

Completion must be quick, so nothing here imports MLX. Without a match, shells complete file names.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from mlxchat.cli.group import Command
from mlxchat.cli.usage_errors import refuse_run_together
from mlxchat.config import TEXT, Setting, by_field, configured, read_user_config
from mlxchat.errors import ConfigError, ExitStatus, UsageError
from mlxchat.options import NEEDED, PAIRS, Option, options_of
from mlxchat.request import Setup
from mlxchat.settings import SamplingSettings

Json = Annotated[bool, typer.Option("--json", help="Write JSON Lines instead of text")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask")]

# In a context's `meta`: the fields that the prompt of `-p` sets.
PROMPT_FIELDS = f"{__name__}.prompt_fields"

# In it, a shell says that this process is to complete a line.
COMPLETING = "_MLXCHAT_COMPLETE"

PLACEHOLDERS = {int: "N", float: "NUMBER", Path: "FILE"}

T = TypeVar("T")


def as_typed(names: Iterable[str], typed: str) -> list[str]:
    """Those that begin so in any case, with the typed letters: Typer leaves out all others."""
    # Other shells quote a name themselves, and bash does within quotes.
    is_bare = os.environ.get("COMP_WORDS", "").split("\n")[-1][:1] not in ("'", '"')
    quoted = r"\\\g<0>" if is_bare and os.environ.get(COMPLETING) == "complete_bash" else r"\g<0>"
    found = (each for each in names if each.lower().startswith(typed.lower()))
    return [re.sub(r"[^\w@%+=:,./-]", quoted, typed + each[len(typed) :]) for each in found]


def complete_model(incomplete: str) -> list[str]:
    """All names of models; the shell completes paths itself."""
    from mlxchat.models.catalog import all_names

    return [] if incomplete.startswith(("/", ".", "~")) else as_typed(all_names(), incomplete)


def complete_session(incomplete: str) -> list[str]:
    from mlxchat.sessions.database import names_by_use

    return as_typed(names_by_use(), incomplete)


def join_options() -> None:
    """Bash divides "--option=value" in a line it completes into three words: leave out the "="."""
    words, cursor = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
    before = [word for word in words[:cursor] if word != "="]
    os.environ.update(COMP_WORDS="\n".join([*before, *words[cursor:]]), COMP_CWORD=str(len(before)))


COMPLETIONS = {"model": complete_model, "session": complete_session}


def with_options(
    options: Mapping[str, Option],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options to a command's own parameters; it takes them as `**values`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        *own, _ = inspect.signature(command, eval_str=True).parameters.values()
        declared = map(_parameter, options.values())
        shown = [*(each.replace(kind=each.KEYWORD_ONLY) for each in own), *declared]
        # Typer makes an option of each parameter in the signature; help looks at `declared`.
        vars(command).update(__signature__=inspect.Signature(shown), declared=options)
        return command

    return decorate


def build(kind: type[T], values: Mapping[str, Any], **others: Any) -> T:
    """The dataclass, from those of its options that have a value. Raises UsageError."""
    return kind(**_written(kind, values) | others)


def _written(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    given = ((name, each, values.get(name)) for name, each in options_of(kind).items())
    return {name: each.value_of(value) for name, each, value in given if value is not None}


def setup_of(values: Mapping[str, Any]) -> Setup:
    """The Setup in a command's options. Raises UsageError."""
    sampling = _written(SamplingSettings, values)
    seed = {"seed": sampling.pop("seed")} if "seed" in sampling else {}
    return build(Setup, values, sampling=sampling, **seed)


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless `yes` answers for the user. Raises UsageError if this is not a terminal, and
    exits if the answer is no."""
    from mlxchat.terminal.output import show_line
    from mlxchat.terminal.progress import terminal_question

    if yes:
        return
    if (ask := terminal_question("[y/N]")) is None:
        raise UsageError("not a terminal: pass --yes to confirm")
    if not ask(question):
        show_line("mlxchat: nothing was deleted")
        raise typer.Exit(ExitStatus.FAILURE)


def given_names(context: typer.Context) -> frozenset[str]:
    """Names of the parameters given on the command line, and the fields of its prompt."""
    return context.meta.get(PROMPT_FIELDS, frozenset()) | _typed_names(context)


def _typed_names(context: Any) -> set[str]:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, each in sources.items() if each and each.name == "COMMANDLINE"}


def _parameter(option: Option) -> inspect.Parameter:
    default = option.default
    name = f"--{option.name}/--no-{option.name}" if option.type is bool else option.flag
    info = typer.Option(
        *([f"-{option.short}", name] if option.short else [name]),
        metavar=option.metavar or "|".join(option.choices) or PLACEHOLDERS.get(option.type, "TEXT"),
        autocompletion=COMPLETIONS.get(option.completes),
        help=option.help,
        show_default=option.if_unset or default not in (None, (), False),
    )
    return inspect.Parameter(
        option.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if option.many else str(default) if type(default) in (int, float) else default,
        annotation=Annotated[_type(option, optional=default is None), info],
    )


def _type(option: Option, *, optional: bool) -> Any:
    """The type that Typer converts the written value to: text where `value_of` reads it."""
    if option.many:
        return list[str] | None
    written: Any = str if option.parse or option.type in (int, float) else option.type
    if option.choices and written is str:
        written = Literal[option.choices]
    return written | None if optional else written


MORE = """
Options can be configured: mlxchat help configuration
Variables and exit statuses: mlxchat help files
"""


class Configured(Command):
    """`batch`, `chat` and `generate`: the configuration sets the options that are not given."""

    def __init__(self, name: str, *, epilog: str, **settings: Any) -> None:
        super().__init__(name, epilog=epilog + MORE, **settings)

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
        # `--no-csv` excludes nothing.
        changed = {each.name for each in self.params if ctx.params.get(each.name) != each.default}
        typed, of_prompt = changed & _typed_names(ctx), changed & ctx.meta.get(PROMPT_FIELDS, set())
        for group in (
            frozenset({one, name})
            for one, others, _ in PAIRS
            for name, _, value in (other.partition("=") for other in others)
            if value in ("", ctx.params.get(name))
        ):
            # One on the command line overrides another in the prompt, that one the configuration's.
            if first := typed & group or of_prompt & group:
                ctx.params.update(dict.fromkeys(ctx.params.keys() & group - first))
        for name, needed in NEEDED.items():
            known = ctx.params.keys() & {*needed}
            if known and not any(map(ctx.params.get, known)) and name not in typed:
                ctx.params.update(dict.fromkeys(ctx.params.keys() & {name}))
        return rest


def _use_prompt(context: typer.Context, name: str | None) -> str | None:
    """The prompt's text, if any; its options become defaults. Raises UsageError, ConfigError."""
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
        autocompletion=lambda incomplete: as_typed(read_user_config().prompts, incomplete),
        is_eager=True,
        callback=_use_prompt,
    ),
]
