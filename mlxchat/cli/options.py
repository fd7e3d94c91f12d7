"""Options as Typer knows them, made from their declarations; and the command line's own."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

import typer

from mlxchat import request
from mlxchat.cli.completion import complete_model, complete_session
from mlxchat.options import Group, Option, option, options_of, same_as
from mlxchat.settings import SamplingSettings

COMPLETIONS = {"model": complete_model, "session": complete_session}

T = TypeVar("T")
Options = Mapping[str, Option]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a run shows besides its text; `stats` None is on a terminal only."""

    quiet: bool = option(
        False, "No progress, warnings or stats on stderr.", Group.OUTPUT, short="q"
    )
    stats: bool | None = option(
        None,
        "A closing line of figures on stderr.",
        Group.OUTPUT,
        if_unset="on a terminal",
    )


@dataclass(frozen=True, slots=True)
class ChatShown:
    """Which session a chat is, and what it shows."""

    latest: bool = option(
        False,
        "Resume the last session.",
        Group.SESSION,
        name="continue",
        short="c",
        negatable=False,
    )
    session: str | None = option(
        None,
        "Resume a session, or begin one of that name.",
        Group.SESSION,
        metavar="NAME",
        if_unset="a new one, named after the time",
        completes="session",
    )
    save: bool = option(
        True, "Save the chat as it goes; otherwise nothing is left on the disk.", Group.SESSION
    )
    plain: bool = option(False, "Do not render replies as Markdown.", Group.OUTPUT)
    events: bool = same_as(request.Request, "events")
    quiet: bool = same_as(Shown, "quiet")
    stats: bool = same_as(
        Shown,
        "stats",
        default=False,
        help="A line of figures on stderr after each reply.",
        if_unset=None,
    )


def _left_to_the_model(options: Options) -> Options:
    """Sampling options: a model's own recommendation comes before the defaults."""
    return {
        name: replace(each, default=None, if_unset=each.if_unset or str(each.default))
        if name in options_of(SamplingSettings)
        else each
        for name, each in options.items()
    }


# The options of the two commands that can be configured, by field.
COMMANDS: dict[str, Options] = {
    "chat": _left_to_the_model(request.CHAT | options_of(ChatShown)),
    "generate": _left_to_the_model(request.GENERATE | options_of(Shown)),
}


def some_of(command: str, *names: str) -> Options:
    return {name: COMMANDS[command][name] for name in names}


def with_options(options: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options beside its own parameters; it takes them as `**values`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            each
            for each in inspect.signature(command, eval_str=True).parameters.values()
            if each.kind is not each.VAR_KEYWORD
        ]
        keyword = [each.replace(kind=each.KEYWORD_ONLY) for each in own]
        declared = [_parameter(each) for each in options.values()]
        shown = inspect.Signature(sorted([*keyword, *declared], key=_place))
        # Typer makes an option of each parameter that the signature shows.
        vars(command)["__signature__"] = shown
        return command

    return decorate


def build(kind: type[T], values: Mapping[str, Any], **others: Any) -> T:
    """The dataclass, with those of its options that have a value. Raises UsageError."""
    written = {
        name: each.value_of(values[name])
        for name, each in options_of(kind).items()
        if values.get(name) is not None
    }
    return kind(**written | others)


def given_names(context: typer.Context) -> frozenset[str]:
    """Names of the parameters that are on the command line, and no defaults of any kind."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(
        name
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    )


def _place(parameter: inspect.Parameter) -> int:
    """In the order of help's headings; without one, first."""
    if not hasattr(parameter.annotation, "__metadata__"):
        return -1
    heading = parameter.annotation.__metadata__[0].rich_help_panel
    return next((place for place, group in enumerate(Group) if group == heading), -1)


def _parameter(option: Option) -> inspect.Parameter:
    default = option.default if option.written is None else option.written
    info = typer.Option(
        *_flags(option),
        metavar=option.metavar or "|".join(option.choices) or None,
        autocompletion=COMPLETIONS.get(option.completes),
        help=option.help,
        show_default=(option.if_unset or "none") if default in (None, ()) else True,
        rich_help_panel=str(option.group),
    )
    return inspect.Parameter(
        option.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if option.many else default,
        annotation=Annotated[_type(option, optional=default is None), info],
    )


def _flags(option: Option) -> list[str]:
    names = [f"--{name}" for name in (option.name, *option.aliases)]
    if option.type is bool and option.negatable:
        names = [f"--{option.name}/--no-{option.name}"]
    return [f"-{option.short}", *names] if option.short else names


def _type(option: Option, *, optional: bool) -> Any:
    """The type of what is written."""
    if option.many:
        return list[str] | None
    written: Any = str if option.parse is not None else option.type
    if option.choices and written is str:
        written = Literal[option.choices]
    return written | None if optional else written
