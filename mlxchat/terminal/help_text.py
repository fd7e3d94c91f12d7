"""The text of a command's help, from its parameters: usage, examples, commands, options.

A page shows the options that are declared common, in one list; a page of `everything` shows all of
them, under headings.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from mlxchat.options import Group
from mlxchat.terminal.help_page import (
    Section,
    format_paragraph,
    format_sections,
    terminal_columns,
)

OPTIONS = "Options"
NEXT_LINE = "\n  "
PLACEHOLDERS = {int: "N", float: "NUMBER"}


def help_page(command: Any, context: Any, *, everything: bool) -> str:
    columns = terminal_columns()
    about, *details = (command.help or "").split("\n\n")
    examples, *more = (command.epilog or "").rstrip("\n").split("\n\n")
    parameters = command.help_parameters(context)
    left_out = [each for each in parameters if not everything and not command.is_common(each)]
    shown = [each for each in parameters if each not in left_out]
    blocks = [
        format_paragraph(about, columns),
        _usage(command, context),
        *(format_paragraph(each, columns) for each in details),
        format_sections(list(_sections(command, shown, everything)), columns),
        f"{examples}\n",
        *(f"{each}\n" for each in more if everything),
        *([_more(command, context, columns)] if left_out or (more and not everything) else []),
    ]
    return "\n".join(blocks)


def summary(command: Any) -> str:
    """The first sentence of a command's help, without its full stop."""
    return (command.help or "").split("\n\n")[0].replace("\n", " ").removesuffix(".")


def name_of(parameter: Any, *, everything: bool = False) -> str:
    """An option as it is typed, `-m, --model MODEL`, or an argument; other names on a page of
    `everything`."""
    if _is_argument(parameter):
        return parameter.metavar or (parameter.name or "").upper()
    long = [each for each in parameter.opts if each.startswith("--")]
    short = [each for each in parameter.opts if not each.startswith("--")]
    if parameter.secondary_opts and parameter.default is not False:
        long = [f"--[no-]{long[0].removeprefix('--')}"]
    names = ", ".join([*short, *(long if everything else long[:1])])
    value = "" if parameter.is_flag else f" {_placeholder(parameter)}"
    return f"{'' if short else '    '}{names}{value}"


def usage_of(argument: Any) -> str:
    """An argument in a usage line: in brackets if it may be left out."""
    name = name_of(argument)
    return name if argument.required else f"[{name}]"


def text_of(parameter: Any) -> str:
    """What it does, and its default."""
    default = _default(parameter)
    return f"{parameter.help or ''}{f' (default: {default})' if default else ''}"


def _usage(command: Any, context: Any) -> str:
    lines = command.usages(context)
    return (
        "\n".join(f"{'Usage:' if not at else '      '} {each}" for at, each in enumerate(lines))
        + "\n"
    )


def _sections(command: Any, parameters: Sequence[Any], everything: bool) -> Iterator[Section]:
    arguments = [each for each in parameters if _is_argument(each) and each.help]
    options = [each for each in parameters if not _is_argument(each)]
    commands = getattr(command, "commands", {})
    if commands:
        yield Section("Commands", [(name, summary(each)) for name, each in commands.items()])
    if arguments:
        yield Section("Arguments", [(name_of(each), text_of(each)) for each in arguments])
    if not everything:
        ordered = [each for heading in _headings(options) for each in _under(heading, options)]
        yield Section(OPTIONS, [(name_of(each), text_of(each)) for each in ordered])
        return
    for heading in _headings(options):
        rows = [
            (name_of(each, everything=True), text_of(each)) for each in _under(heading, options)
        ]
        yield Section(heading, rows)


def _under(heading: str, options: Sequence[Any]) -> list[Any]:
    return [each for each in options if (each.rich_help_panel or OPTIONS) == heading]


def _headings(options: Sequence[Any]) -> list[str]:
    found = dict.fromkeys(str(each.rich_help_panel or OPTIONS) for each in options)
    order = [*map(str, Group)]
    known = [each for each in order if each in found]
    return [*known, *(each for each in found if each not in order)]


def _is_argument(parameter: Any) -> bool:
    return parameter.param_type_name == "argument"


def _more(command: Any, context: Any, columns: int) -> str:
    """How to show everything: a command in one piece, so that it can be copied."""
    words, full_help = "All options and more:", command.full_help(context)
    fits = len(words) + 1 + len(full_help) <= columns
    return f"{words}{' ' if fits else NEXT_LINE}{full_help}\n"


def _placeholder(option: Any) -> str:
    if option.metavar:
        return option.metavar
    if option.type_descriptor.choices:
        return "|".join(map(str, option.type_descriptor.choices))
    return PLACEHOLDERS.get(option.type_descriptor.annotation, "TEXT")


def _default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    default = parameter.default
    if not parameter.show_default or default in (None, False, (), []):
        return ""
    return "on" if default is True else str(default)
