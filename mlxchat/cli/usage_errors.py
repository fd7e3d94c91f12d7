"""Typer's usage errors in the program's words, with the help to look at."""

from collections.abc import Sequence
from typing import Any

from typer.exceptions import TyperException

# Typer checks values with pydantic, whose messages end up in its own.
PYDANTIC = {
    "Value error, ": "",
    "Input should be a valid integer, unable to parse string as an integer": "not a whole number",
    "Input should be a valid integer, got a number with a fractional part": "not a whole number",
    "Input should be a valid integer": "not a whole number",
    "Input should be a valid number, unable to parse string as a number": "not a number",
    "Input should be a valid number": "not a number",
    "Input should be a valid boolean, unable to interpret input": "neither true nor false",
    "Input should be a valid string": "not a text",
}


def in_words(message: str) -> str:
    """The message without pydantic's phrases."""
    for theirs, ours in PYDANTIC.items():
        message = message.replace(theirs, ours)
    return message.removesuffix(".")


def explain(error: TyperException, arguments: Sequence[str], root: Any) -> str:
    """The error in one line, with a hint and the help to look at. `root` is the program's group."""
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mlxchat"
    message = in_words(error.format_message())
    return f"{message}{_hint(error, arguments, root, path)} (see {path} --help)"


def _hint(error: Any, arguments: Sequence[str], root: Any, path: str) -> str:
    option = getattr(error, "option_name", None)
    if option is not None:
        if any(each.startswith(option) and " " in each for each in arguments):
            return "; before a question that begins with a dash, put --"
        other = {"mlxchat chat": "generate", "mlxchat generate": "chat"}.get(path)
        if other is not None and any(option in each.opts for each in root.commands[other].params):
            return f"; it is an option of `mlxchat {other}`"
    if "unexpected extra argument" in error.format_message() and path == "mlxchat generate":
        return "; quote the prompt"
    return ""
