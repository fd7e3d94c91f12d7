"""`mlxchat "question"`: distinguish a question from a mistyped command.

A question is quoted, so it has spaces; or it has a character that no command has. A single word is
a question only after `mlxchat chat`, with a document, or in a session that continues.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from mlxchat.errors import UsageError
from mlxchat.manual.equivalents import hint_for_command

COMMAND_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
PATH_BEGINNINGS = ("/", "./", "../", "~/")
# With one of these, a word is about something: `mlxchat -f report.txt Summarize`.
SUBJECT_OPTIONS = {"-f", "--file", "-p", "--prompt", "-c", "--continue", "--session"}
CLOSE = 0.7
MIN_PREFIX = 3


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
