"""Typer's usage errors in the program's words, with the help to look at."""

import re
from collections.abc import Collection, Sequence
from itertools import pairwise, takewhile
from typing import Any

from typer.exceptions import TyperException

from mlxchat.errors import ExitStatus
from mlxchat.manual.equivalents import PAGE, hint_for, hint_for_command

SWITCHING = f"mlxchat help {PAGE}"
# llm's way to set a model's option, such as `-o temperature 1`.
MODEL_OPTION = "-o"
# The commands whose options other programs have, too.
CONFIGURED = ("batch", "chat", "generate")
ONE_DASH = re.compile(r"-[A-Za-z][A-Za-z-]+")
LONG = re.compile(r"--[\w-]+")

# What Typer writes, and pydantic, with which Typer checks values.
PHRASES = (
    (r"Value error, ", ""),
    (r"Input should be a valid integer(, .*)?", "not a whole number"),
    (r"Input should be a valid number(, .*)?", "not a number"),
    (r"Input should be a valid boolean(, .*)?", "neither true nor false"),
    (r"Input should be a valid string(, .*)?", "not text"),
    (r"Invalid value for (?:'-\w' / )?'([^']+)'", r"invalid value for \1"),
    (r"Missing argument '([^']+)'", r"missing \1"),
    (r"No such (option: |command )'?([^\s']+)'?", r"unknown \1\2"),
    (r"unknown option: ", "unknown option "),
    (r"\.? Did you mean '?([^']+?)'?\?", r"; did you mean \1?"),
    (r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", r"unexpected argument \1"),
    (r"Option '([^']+)' requires an argument", r"\1 needs a value"),
    (r"Option '([^']+)' does not take a value", r"\1 takes no value"),
)


def in_words(message: str) -> str:
    """The message without Typer's and pydantic's phrases."""
    for theirs, ours in PHRASES:
        message = re.sub(theirs, ours, message)
    return message.removesuffix(".")


class UnknownOption(TyperException):
    """Raised for an option that Typer's parser would read as another one."""

    exit_code = ExitStatus.USAGE

    def __init__(self, option: str, context: Any) -> None:
        super().__init__(f"unknown option {option}")
        self.option_name = option
        self.ctx = context


def explain(error: TyperException, arguments: Sequence[str], root: Any) -> str:
    """The error in one line, with a hint and the help to look at. `root` is the program's group."""
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mlxchat"
    message = in_words(error.format_message())
    typed = "mlxchat" if path == "mlxchat chat" and arguments[:1] != ["chat"] else path
    if message.startswith("unknown option") and context is not None:
        option = str(vars(error)["option_name"])
        hint, page = _hint_for_option(option, arguments, root, context)
        return f"unknown option {option}{hint} (see {page or f'{typed} --help'})"
    hint = _hint(message, path) or _hint_for_command(message, path)
    return f"{message}{hint} (see {typed} --help)"


def refuse_run_together(arguments: Sequence[str], context: Any) -> None:
    """Raise UnknownOption for another program's option with one dash, such as `-ngl`, or ours, such
    as `-system`: they would be read as -n with the value "gl", and as -s with "ystem"."""
    own = _options(context.command)
    before = ""
    for each in takewhile(lambda each: each != "--", arguments):
        is_value = before in own and not own[before].is_flag
        if not is_value and ONE_DASH.fullmatch(each) and (f"-{each}" in own or hint_for(each)):
            raise UnknownOption(each, context)
        before = each


def _hint(message: str, path: str) -> str:
    if message.startswith("unexpected argument") and path == "mlxchat generate":
        return "; quote the prompt"
    if message.startswith("unexpected argument") and path == "mlxchat batch":
        return "; quote the pattern of --files"
    return ""


def _hint_for_command(message: str, group: str) -> str:
    """The group's command for another program's, such as `models info` for ollama's `show`."""
    found = re.fullmatch(r"unknown command (\w+)", message)
    hint = hint_for_command(found[1]) if found else None
    return f"; {hint}" if hint and f"use {group} " in hint else ""


def _hint_for_option(
    option: str, arguments: Sequence[str], root: Any, context: Any
) -> tuple[str, str | None]:
    """What may have been meant, and the page of the manual that says more."""
    if any(each.startswith(option) and " " in each for each in arguments):
        return "; before a question that begins with a dash, put --", None
    own = _options(context.command)
    varied = f"--{option.lstrip('-').lower().replace('_', '-')}"
    if varied in own:
        return f"; did you mean {varied}?", None
    name = context.command.name
    value = next((after for each, after in pairwise(arguments) if each == option), "")
    if option == MODEL_OPTION and (hint := hint_for(f"{option} {value}")):
        return f"; {hint}", SWITCHING
    other = {"chat": "generate", "generate": "chat"}.get(name)
    if other is not None and option in _options(root.commands[other]):
        return f"; it is an option of `mlxchat {other}`", None
    hint = hint_for(option) if name in CONFIGURED else None
    if hint is not None and _is_for(own, hint):
        return f"; {hint}", SWITCHING

    from difflib import get_close_matches

    near = get_close_matches(varied, own, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else "", None


def _is_for(own: Collection[str], hint: str) -> bool:
    """Whether the hint is for a command with these options: has them, or names its own command."""
    return "mlxchat " in hint or {*LONG.findall(hint)} <= {*own}


def _options(command: Any) -> dict[str, Any]:
    """The command's options by the names that help shows."""
    return {name: each for each in command.params for name in each.opts if name.startswith("-")}
