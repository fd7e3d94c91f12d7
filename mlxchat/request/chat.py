"""How to open a chat."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxchat.options import Panel, check_options, option, options_of, same_as
from mlxchat.request.generate import Request
from mlxchat.request.setup import Setup
from mlxchat.settings import GenerationSettings

# Turns that "auto" recalls at most: a fact and its change.
AUTO_RECALL = 2
RECALLS = {"auto": AUTO_RECALL, "off": 0}


def parse_recall(written: str | int) -> int:
    """Turns to recall at most, from "auto", "off" or a number."""
    text = str(written)
    number = RECALLS.get(text, int(text) if text.isdecimal() else -1)
    if not 0 <= number <= AUTO_RECALL:
        raise ValueError(f"must be auto, off or at most {AUTO_RECALL} turns, got {text!r}")
    return number


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How to open a chat.

    `think` is "on", "off" or "hide". `exact` refuses to resume a session whose cache cannot be
    restored bit for bit. A resumed session restores its own model, dtype, window and template_args,
    except those named in `chosen`, which are taken from here. None means all that differ from
    their defaults.
    """

    setup: Setup = field(default_factory=Setup)
    system: str | None = same_as(Request, "system")
    template_args: Mapping[str, Any] = same_as(Request, "template_args")
    exact: bool = option(
        False,
        "Refuse to resume unless the cache restores bit for bit",
        Panel.SESSION,
    )
    recalls: int = option(
        AUTO_RECALL,
        "Quote forgotten turns that a message needs: auto, off, N",
        Panel.WINDOW,
        name="recall",
        metavar="auto|off|N",
        parse=parse_recall,
        written="auto",
        in_chat=True,
        saved=True,
    )
    think: str = same_as(Request, "think", default="on", if_unset=None)
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    chosen: frozenset[str] | None = None

    def __post_init__(self) -> None:
        check_options(self)

    def chosen_fields(self) -> frozenset[str]:
        """The fields that override those of a session."""
        if self.chosen is not None:
            return self.chosen
        return frozenset(
            name
            for ours, default in ((self, ChatOptions()), (self.setup, Setup()))
            for name in options_of(type(ours))
            if getattr(ours, name) != getattr(default, name)
        )
