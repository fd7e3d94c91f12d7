"""What `/set` can change: the options of a chat, their values, and what else a name may mean."""

import re
from collections.abc import Collection, Iterator

from mlxchat.chat.conversation import Conversation
from mlxchat.manual.equivalents import hint_for, option_for
from mlxchat.options import SWITCH, Option
from mlxchat.request.commands import COMMANDS as OPTIONS
from mlxchat.request.written import format_template_args

SETTABLE = {each.name: each for each in OPTIONS["chat"].values() if each.in_chat}


def options_or_values(typed: str) -> Iterator[str]:
    """What Tab completes after `/set`."""
    name, *values = typed.split(" ", 1)
    if not values:
        yield from (f"{each} " for each in SETTABLE)
    elif name in SETTABLE:
        option = SETTABLE[name]
        yield from (f"{name} {each}" for each in SWITCH if option.type is bool)
        yield from (f"{name} {each}" for each in option.choices)


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
    return hint or "/set lists them"


def values_of(option: Option) -> str:
    """What to type as its value."""
    return "|".join(SWITCH) if option.type is bool else option.metavar or "VALUE"


def settings_of(conversation: Conversation) -> Iterator[str]:
    """The options of /set with their values."""
    own = (conversation.sampling, conversation.generation, conversation.rendering, conversation)
    for each in SETTABLE.values():
        value = next(getattr(h, each.field) for h in own if hasattr(h, each.field))
        if each.many:
            given = format_template_args(value) if each.field == "template_args" else value
            yield from (f"{each.name} {one}" for one in given)
        else:
            yield f"{each.name} {each.text_of(value)}"
