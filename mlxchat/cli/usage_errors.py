"""Typer's usage errors in the program's words, with the help to look at."""

import re
from collections.abc import Sequence
from typing import Any

from typer.exceptions import TyperException

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
    (r" \(Possible options: (.*)\)", r"; did you mean \1?"),
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


def explain(error: TyperException, arguments: Sequence[str], root: Any) -> str:
    """The error in one line, with a hint and the help to look at. `root` is the program's group."""
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mlxchat"
    message = in_words(error.format_message())
    typed = "mlxchat" if path == "mlxchat chat" and arguments[:1] != ["chat"] else path
    return f"{message}{_hint(message, error, arguments, root, path)} (see {typed} --help)"


def _hint(message: str, error: Any, arguments: Sequence[str], root: Any, path: str) -> str:
    if message.startswith("unknown option"):
        option = error.option_name
        if any(each.startswith(option) and " " in each for each in arguments):
            return "; before a question that begins with a dash, put --"
        other = {"mlxchat chat": "generate", "mlxchat generate": "chat"}.get(path)
        if other is not None and any(option in each.opts for each in root.commands[other].params):
            return f"; it is an option of `mlxchat {other}`"
    if message.startswith("unexpected argument") and path == "mlxchat generate":
        return "; quote the prompt"
    if message.startswith("unexpected argument") and path == "mlxchat batch":
        return "; quote the pattern of --files"
    return ""
