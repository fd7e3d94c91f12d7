"""How to open a chat, what is shown, and the options of each command that runs a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlxchat.options import Option, between, check_options, option, options_of, same_as
from mlxchat.request.batch import BatchInput, BatchRequest
from mlxchat.request.generate import Answer, Overnight, Request, Setup, name_stdin
from mlxchat.settings import GenerationSettings, SamplingSettings

# Turns that are recalled at most: a fact and its change.
MOST_RECALLS = 2


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How to open a chat.

    `think` is "on", "off" or "hide". A resumed session restores its own model, dtype, window and
    template_args, except those named in `chosen`, which are taken from here. None means all that
    differ from their defaults.
    """

    setup: Setup = field(default_factory=Setup)
    system: str | None = same_as(Request, "system")
    template_args: Mapping[str, Any] = same_as(Request, "template_args")
    recalls: int = option(
        MOST_RECALLS,
        "Quote at most N forgotten turns that a message needs",
        name="recall",
        must=between(0, MOST_RECALLS),
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


@dataclass(frozen=True, slots=True)
class Shown:
    """The notices and figures that a run shows; `stats` None means only on a terminal."""

    quiet: bool = option(False, "Show no progress, warnings or unasked statistics", short="q")
    stats: bool | None = option(None, "Show figures on stderr at the end", if_unset="on a terminal")


@dataclass(frozen=True, slots=True)
class ChatShown:
    """Which session a chat uses, what it begins with, and what it shows."""

    latest: bool = option(False, "Continue the last chat", name="continue", short="c", common=True)
    session: str | None = option(
        None,
        "Continue or create the session NAME",
        common=True,
        metavar="NAME",
        if_unset="a new one",
        completes="session",
    )
    save: bool = option(True, "Save the chat as a session", common=True)
    files: tuple[str, ...] = same_as(
        Request, "files", help="Attach a file, folder or pattern; repeatable", if_unset=None
    )
    plain: bool = option(False, "Show replies as plain text, not Markdown")
    events: bool = same_as(Request, "events")
    quiet: bool = same_as(Shown, "quiet")
    stats: bool = same_as(
        Shown,
        "stats",
        default=False,
        help="Show statistics on stderr after each reply",
        if_unset=None,
    )

    def __post_init__(self) -> None:
        check_options(self)
        name_stdin(self, "files")


def _options(
    *kinds: type, without: tuple[str, ...], sampling_if_unset: str = "the model's, else {:g}"
) -> dict[str, Option]:
    """The options of these dataclasses, and how to sample if the model recommends nothing."""
    found = {name: each for kind in kinds for name, each in options_of(kind).items()}
    for name, each in options_of(SamplingSettings).items():
        if not each.many:
            unset = each.if_unset or sampling_if_unset.format(each.default)
            found[name] = replace(each, default=None, if_unset=unset)
    return {name: each for name, each in found.items() if name not in without}


COMMANDS = {
    # A batch runs on one machine, and its answers are whole texts.
    "batch": _options(
        *(BatchInput, BatchRequest, Setup, SamplingSettings, Answer, Shown),
        without=("pipeline", "extract"),
    ),
    # A chat keeps what comes before the first message.
    "chat": _options(
        *(ChatShown, ChatOptions, GenerationSettings, Setup, SamplingSettings, Answer),
        without=("ignore_eos", "logprobs", "keep"),
        sampling_if_unset="as recommended for the model",
    ),
    "generate": _options(*(Request, Setup, SamplingSettings, Answer, Overnight, Shown), without=()),
}
