"""What a command line may have been meant to be, in one line: Typer's usage errors in the program's
words, other programs' options, and `mlxchat "question"` as distinct from a mistyped command.

A question is quoted, so it has spaces; or it has a character that no command has. A single word is
a question only after `mlxchat chat`, with a document, or in a session that continues.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise, takewhile
from typing import Any

from typer.exceptions import TyperException

from mlxchat.errors import ExitStatus, UsageError
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

COMMAND_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
PATH_BEGINNINGS = ("/", "./", "../", "~/")
# With one of these, a word is about something: `mlxchat -f report.txt Summarize`.
SUBJECT_OPTIONS = {"-f", "--file", "-p", "--prompt", "-c", "--continue", "--session"}
CLOSE = 0.7
MIN_PREFIX = 3


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
    hint = _quoting(message, path) or _hint_for_command(message, path)
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


def _quoting(message: str, path: str) -> str:
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

    near = get_close_matches(varied, own, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else "", None


def _is_for(own: Collection[str], hint: str) -> bool:
    """Whether the hint is for a command with these options: has them, or names its own command."""
    return "mlxchat " in hint or {*LONG.findall(hint)} <= {*own}


def _options(command: Any) -> dict[str, Any]:
    """The command's options by the names that help shows."""
    return {name: each for each in command.params for name in each.opts if name.startswith("-")}


# Questions


def check_question(words: Sequence[str], root: Any, arguments: Iterable[str] = ()) -> None:
    """Raise UsageError if the words after `mlxchat` are not meant as a question.

    `root` is the program's group of commands, `arguments` the whole command line.
    """
    paths = list(_paths(root))
    text = " ".join(words[0].split())
    if text in paths:
        raise UsageError(
            f"{text} is a command: run `mlxchat {text}`, with its options after it; to ask it, "
            f'use `mlxchat chat "{text}"`'
        )
    if len(words) == 1 and (words[0] != text or " " in text):
        return
    if len(words) == 1:
        _check_word(text, paths, has_subject=_names_subject(arguments) or _has_document())
        return
    hint = _hint(text, paths)
    question = " ".join(words)
    raise UsageError(
        f'unknown command {text!r}{hint}; to ask a question, quote it: mlxchat "{question}"'
    )


def _check_word(word: str, paths: Sequence[str], *, has_subject: bool) -> None:
    if not word:
        raise UsageError("the question is empty")
    # Unlike Path.exists, this takes a word of any length.
    if os.path.isdir(word) or _is_model(word):  # noqa: PTH112
        raise UsageError(f"{word} is a model: to chat with it, use `mlxchat -m {word}`")
    if word.startswith(PATH_BEGINNINGS) or os.path.exists(word):  # noqa: PTH110
        raise UsageError(
            f'{word} is a path: to ask about a file, use `mlxchat -f {word} "question"`'
        )
    if not COMMAND_WORD.fullmatch(word):
        return
    if has_subject and not _near(word, paths):
        return
    hint = _hint(word, paths)
    raise UsageError(f"unknown command {word!r}{hint}; to ask it, use `mlxchat chat {word}`")


def _paths(command: Any, before: tuple[str, ...] = ()) -> Iterator[str]:
    """The words of every command: `models`, `models list`."""
    for name, each in getattr(command, "commands", {}).items():
        yield " ".join((*before, name))
        yield from _paths(each, (*before, name))


def _hint(word: str, paths: Sequence[str]) -> str:
    """The command that was meant, ours or another program's."""
    near = _near(word, paths)
    # More than one are commands of groups, such as `session show`.
    hint = hint_for_command(word.lower()) if len(near) != 1 else None
    if hint is None and near:
        hint = f"did you mean {' or '.join(f'`mlxchat {each}`' for each in near)}?"
    return f" ({hint})" if hint else ""


def _near(word: str, paths: Sequence[str]) -> Sequence[str]:
    lowered = word.lower()
    commands = [each for each in paths if " " not in each]
    inner = [each for each in paths if each.endswith(f" {lowered}")]
    begun = [each for each in commands if each.startswith(lowered) and len(word) >= MIN_PREFIX]
    return begun or get_close_matches(lowered, commands, n=1, cutoff=CLOSE) or inner


def _is_model(word: str) -> bool:
    from mlxchat.cli.completion import complete_model

    if word.startswith(PATH_BEGINNINGS) or os.path.exists(word):  # noqa: PTH110
        return False
    return bool(HUB_ID.fullmatch(word)) or word in complete_model(word)


def _names_subject(arguments: Iterable[str]) -> bool:
    return not SUBJECT_OPTIONS.isdisjoint(each.partition("=")[0] for each in arguments)


def _has_document() -> bool:
    from mlxchat.text.documents import piped_stdin

    return piped_stdin() is not None
