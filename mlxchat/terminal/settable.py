"""What `/set` can change: the options of a chat, their values, and what else a name may mean."""

import difflib
import re
from collections.abc import Collection, Iterator
from typing import Any

from mlxchat.chat.conversation import Conversation
from mlxchat.errors import UsageError
from mlxchat.manual.equivalents import hint_for, option_for
from mlxchat.options import SWITCH, Option
from mlxchat.request.commands import COMMANDS as OPTIONS
from mlxchat.request.written import format_template_args

# What goes back to the value without any choice.
DEFAULT = "default"
AS_COMMANDS = ("file", "model", "schema", "system", "think")
SETTABLE = {each.name: each for each in OPTIONS["chat"].values() if each.in_chat}


def options_or_values(_: object, typed: str) -> Iterator[str]:
    """What Tab completes after `/set`."""
    name, *values = typed.split(" ", 1)
    if not values:
        yield from (f"{each} " for each in SETTABLE)
    elif option := called(name):
        choices = SWITCH if option.type is bool else option.choices or {option.if_unset} & {"off"}
        yield from (f"{name} {each}" for each in (*choices, DEFAULT))


def called(name: str) -> Option | None:
    """The option of this name, which may be written as a flag, or be another program's."""
    return SETTABLE.get(option_for(name) or name.lstrip("-").replace("_", "-"))


def instead_of(argument: str, commands: Collection[str]) -> str:
    """What to do instead of setting an option that /set does not have."""
    # `/set parameter NAME VALUE` is ollama's.
    name = re.split(r"[ =]", argument.removeprefix("parameter "), maxsplit=1)[0].lstrip("-")
    hint = hint_for(f"/set {name}") or hint_for(name) or ""
    ours = option_for(name) or name.replace("_", "-")
    if f"/{ours}" in commands:
        return f"use /{ours}"
    if ours in SETTABLE:
        return f"use /set {ours}"
    if not hint.startswith("use /") and any(ours == each.name for each in OPTIONS["chat"].values()):
        return f"start mlxchat with --{ours}"
    names = {alias: name for name, each in SETTABLE.items() for alias in (name, *each.aliases)}
    near = difflib.get_close_matches(ours, names, n=1)
    return hint or (f"did you mean {names[near[0]]}?" if near else "/set lists them")


def as_in_chat(text: str) -> str:
    """The text with the program's options spelled as in a chat; in backquotes, they stay."""
    ours = {f"--{n}": f"/{n}" for n in AS_COMMANDS} | {f"--{each}": each for each in SETTABLE}
    return re.sub(r"`[^`]*`|--[a-z-]+", lambda found: ours.get(found[0], found[0]), text)


def value_of(option: Option, typed: str) -> Any:
    """Its value. Raises UsageError, with the nearest value in its range."""
    try:
        return option.value_of(typed.split() if option.field == "logit_bias" else typed)
    except UsageError as error:
        message = str(error).removeprefix("--")
        if option.must is not None and option.must.ends and option.must.words in message:
            near = min(option.must.ends, key=lambda end: abs(end - float(typed)))
            message += f": the nearest is {near:g}"
        raise UsageError(message) from error


def text_of(option: Option, conversation: Conversation) -> str:
    """The option's value in the conversation; empty if it can have many, and has none."""
    own = (conversation.sampling, conversation.generation, conversation.rendering, conversation)
    value = next(getattr(h, option.field) for h in own if hasattr(h, option.field))
    if option.field == "template_args":
        value = format_template_args(value)
    return " ".join(value) if option.many else option.text_of(value)
