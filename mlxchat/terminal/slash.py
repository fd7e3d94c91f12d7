"""What a slash command is, which one a typed line is, and how it runs. `commands` has them all."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mlxchat.errors import MlxchatError, UsageError
from mlxchat.manual.equivalents import hint_for

# A handler gets the `ChatScreen` and the text after the command; it may return a draft for the next
# prompt. It runs in the worker once the model is loaded, unless it does not need that.
Handler = Callable[[Any, str], str | None]
# Suggests arguments for a command, given their typed beginning.
Suggest = Callable[[Any, str], Iterable[str]]


@dataclass(frozen=True, slots=True)
class SlashCommand:
    usage: str
    help: str
    handle: Handler
    suggest: Suggest
    needs_model: bool


COMMANDS: dict[str, SlashCommand] = {}

# What people type from habit.
OTHER_NAMES = {"/bye": "/exit", "/quit": "/exit", "/reset": "/clear", "/?": "/help"}
EXIT_WORDS = {"exit", "quit"}


def command(
    usage: str, help_text: str, suggest: Suggest = lambda *_: (), *, needs_model: bool = True
) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        name = usage.split(maxsplit=1)[0]
        COMMANDS[name] = SlashCommand(usage, help_text, handler, suggest, needs_model)
        return handler

    return add


def as_command(text: str) -> str | None:
    """The command that a typed line is, or None for a message. `//` begins a message."""
    if text.strip().lower() in EXIT_WORDS:
        return "/exit"
    return text if text.startswith("/") and not text.startswith("//") else None


def without_draft(text: str, draft: str) -> str:
    """The command alone if one was typed after an unedited draft, or a word that leaves."""
    typed = text.removeprefix(draft)
    name = typed.strip().partition(" ")[0]
    known = OTHER_NAMES.get(name, name) in COMMANDS
    # "I want to" + " quit" is a message.
    return typed.strip() if known or typed.rstrip().lower() in EXIT_WORDS else text


def run_command(shown: Any, line: str) -> str | None:
    """Run the command; return a draft for the next prompt. Raises UsageError for an unknown
    command, with the nearest one."""
    name, _, argument = line.partition(" ")
    found = COMMANDS.get(OTHER_NAMES.get(name, name))
    if found is None:
        if meant := hint_for(name):
            raise UsageError(f"unknown command {name}: {meant}")
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"see /help, or send it as /{name}"
        raise UsageError(f"unknown command {name}: {hint}")
    # An argument in brackets may be left out.
    if found.usage.partition(" ")[2][:1] not in ("", "[") and not argument.strip():
        raise UsageError(f"usage: {found.usage}")
    if found.needs_model:
        return shown.work(lambda: found.handle(shown, argument.strip()))
    return found.handle(shown, argument.strip())


def suggestions(shown: Any, name: str, typed: str) -> Iterator[str]:
    """Arguments of the command that start with the typed text. Errors give no suggestions."""
    found = COMMANDS.get(name)
    if found is not None:
        with suppress(MlxchatError, OSError):
            yield from (each for each in found.suggest(shown, typed) if each.startswith(typed))
