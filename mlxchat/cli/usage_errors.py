"""What a command line may have been meant to be, in one line: other programs' options, and
`mlxchat "question"` as distinct from a mistyped command.

A question is quoted, so it has spaces; or it has a character that no command has. A single word is
a question only after `mlxchat chat`, with a document, or in a session that continues.
"""

import os
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise, takewhile
from typing import Any

from typer.exceptions import TyperException

from mlxchat.errors import UsageError
from mlxchat.manual.equivalents import hint_for, hint_for_command

ONE_DASH = re.compile(r"-[A-Za-z][A-Za-z-]+")
COMMAND_WORD, CHAT_COMMAND = re.compile(r"[A-Za-z][A-Za-z0-9_-]*"), re.compile(r"/[a-z]+")
CLOSE, MIN_PREFIX = 0.7, 3
NOT_EMPTY = ("DIR", "FILE", "MODEL", "NAME", "PATTERN", "REGEX", "SCHEMA")
GENERATING = ("generate", "chat", "batch")


def explain(error: TyperException, arguments: Sequence[str], root: Any) -> str:
    """The error in one line, with a hint and the help to look at. `root` is the program's group."""
    # As the program's own messages are written.
    written = " ".join(error.format_message().split()).replace("Value error, ", "")
    message = f"{written[:1].lower()}{written[1:]}".removesuffix(".")
    context: Any = getattr(error, "ctx", None)
    given = " ".join(("mlxchat", *arguments, ""))
    paths = ["mlxchat", *(f"mlxchat {each}" for each in _paths(root))]
    path = max((each for each in paths if given.startswith(f"{each} ")), key=len)
    if message.startswith("no such option") and context is not None:
        option = str(vars(error)["option_name"])
        if hint := _hint_for_option(option, arguments, root, context.command.name):
            message = f"no such option: {option.strip()}; {hint}"
    elif message.startswith("got unexpected") and path.split()[-1] in ("mlxchat", *GENERATING):
        message += "; quote a text of several words, or a pattern"
    return f"{message} (see {path} --help)"


def refuse_run_together(arguments: Sequence[str], command: Any) -> None:
    """Raise UsageError for another program's option with one dash, such as `-ngl`, or ours, such as
    `-system`: they would be read as -n with the value "gl", and as -s with "ystem"."""
    # An argument's name may be a question.
    own = {name: each for each in command.params for name in each.opts if name.startswith("-")}
    before = ""
    for each in takewhile(lambda each: each != "--", arguments):
        is_value = before in own and not own[before].is_flag
        name, given, value = (before, "=", each) if is_value else each.partition("=")
        if given and not value and name in own and own[name].metavar in NOT_EMPTY:
            raise UsageError(f"{name} must not be empty")
        if not is_value and ONE_DASH.fullmatch(each):
            hint = f"did you mean -{each}?" if f"-{each}" in own else hint_for(each)
            if hint is not None:
                raise UsageError(f"no such option: {each}; {hint}")
        before = each


def _hint_for_option(option: str, arguments: Sequence[str], root: Any, command: str) -> str | None:
    start = option if option.startswith("--") else "-"
    if any(each.startswith(start) and " " in each for each in arguments):
        return "before a question that begins with a dash, put --"
    if command not in GENERATING:
        return hint_for(option) if option.startswith("--") else None
    named = hint_for(f"{option} {dict(pairwise(arguments)).get(option, '')}") or hint_for(option)
    for other in GENERATING:
        if named is None and any(option in each.opts for each in root.commands[other].params):
            return f"it is an option of `mlxchat {other}`"
    return named


def check_question(words: Sequence[str], root: Any, *, has_subject: bool) -> None:
    """Raise UsageError if the words after `mlxchat` are not meant as a question. `root` is the
    program's group of commands; with a subject, a word may be about that."""
    from mlxchat.models.catalog import is_model

    word = " ".join(words[0].split())
    hint = _hint_for_command(word, list(_paths(root)))
    is_path = "/" in word or (word != "-" and os.path.exists(word))  # noqa: PTH110
    if word in root.commands:
        raise UsageError(f"options come after the command: mlxchat {word} …")
    if CHAT_COMMAND.fullmatch(word) and not os.path.exists(word):  # noqa: PTH110
        raise UsageError(f"{word} is for a chat: start it with `mlxchat`, and type {word} there")
    if not hint and (is_path or is_model(word)) and " " not in word:
        raise UsageError(
            f"{word} is a model or a path: to chat with a model, use `mlxchat -m {word}`; to ask "
            f'about a file, `mlxchat -f {word} "question"`; quote a pattern of files'
        )
    if hint or len(words) > 1 or (COMMAND_WORD.fullmatch(word) and not has_subject):
        before = "chat " * (len(words) == 1) + "-- " * (words[0][:1] == "-")
        how = f'use `mlxchat {before}"{" ".join(words)}"`'
        how = "put options before --" if any(each[:1] == "-" for each in words[1:]) else how
        ask = "" if hint and "did you mean" not in hint else f"; to ask it, {how}"
        raise UsageError(f"unknown command {word!r}{hint}{ask}")


def _paths(command: Any, before: tuple[str, ...] = ()) -> Iterator[str]:
    """The words of every command: `models`, `models list`."""
    for name, each in getattr(command, "commands", {}).items():
        yield " ".join((*before, name))
        yield from _paths(each, (*before, name))


def _hint_for_command(word: str, paths: Sequence[str]) -> str:
    """The command that was meant, ours or another program's."""
    word, near = word.lower(), [word.lower()] if word.lower() in paths else []
    if not near and COMMAND_WORD.fullmatch(word):
        commands = [each for each in paths if " " not in each]
        begun = [each for each in commands if each.startswith(word) and len(word) >= MIN_PREFIX]
        near = begun or get_close_matches(word, commands, n=1, cutoff=CLOSE)
        # Those of groups, such as `session show`, may be several.
        near = near or [each for each in paths if each.endswith(f" {word}")]
    hint = hint_for_command(word) if len(near) != 1 else None
    if hint is None and near:
        hint = f"did you mean {' or '.join(f'`mlxchat {each}`' for each in near)}?"
    return f" ({hint})" if hint else ""
