"""The options of the commands that run a model, by field, and those that only the command line has:
what a command shows, and which session a chat uses."""

from dataclasses import dataclass, replace

from mlxchat.options import Option, Panel, option, options_of, same_as
from mlxchat.request.batch import BatchInput, BatchRequest
from mlxchat.request.chat import ChatOptions
from mlxchat.request.generate import Answer, Overnight, Request
from mlxchat.request.pairs import refuse_pairs
from mlxchat.request.setup import Setup
from mlxchat.settings import GenerationSettings, SamplingSettings


@dataclass(frozen=True, slots=True)
class Shown:
    """The notices and figures that a run shows; `stats` None means only on a terminal."""

    quiet: bool = option(False, "Show no progress, warnings or statistics", Panel.OUTPUT, short="q")
    stats: bool | None = option(
        None,
        "Show statistics on stderr at the end",
        Panel.OUTPUT,
        if_unset="on a terminal",
    )


@dataclass(frozen=True, slots=True)
class ChatShown:
    """Which session a chat uses, what it begins with, and what it shows."""

    latest: bool = option(
        False,
        "Continue the last session",
        Panel.SESSION,
        common=True,
        name="continue",
        short="c",
        negatable=False,
    )
    session: str | None = option(
        None,
        "Continue or create the session NAME",
        Panel.SESSION,
        common=True,
        metavar="NAME",
        if_unset="a new one",
        completes="session",
    )
    save: bool = option(True, "Save the chat as a session", Panel.SESSION, common=True)
    files: tuple[str, ...] = same_as(
        Request, "files", help="Attach a file, folder or pattern; repeatable", if_unset=None
    )
    plain: bool = option(False, "Show replies as plain text, not Markdown", Panel.OUTPUT)
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
        refuse_pairs(self)


def _options(*kinds: type, sampling_if_unset: str = "the model's, else {:g}") -> dict[str, Option]:
    """The options of these dataclasses, and how to sample if the model recommends nothing."""
    sampling = {
        name: each
        if each.many
        else replace(
            each, default=None, if_unset=each.if_unset or sampling_if_unset.format(each.default)
        )
        for name, each in options_of(SamplingSettings).items()
    }
    return {name: each for kind in kinds for name, each in options_of(kind).items()} | sampling


COMMANDS = {
    "batch": _options(BatchInput, BatchRequest, Setup, Answer, Shown),
    "chat": _options(
        *(ChatOptions, Setup, GenerationSettings, Answer, ChatShown),
        sampling_if_unset="as recommended for the model",
    ),
    "generate": _options(Request, Setup, Answer, Overnight, Shown),
}
# A batch runs on one machine, and its answers are whole texts.
for _name in ("pipeline", "extract"):
    del COMMANDS["batch"][_name]
# A chat keeps what comes before the first message.
for _name in ("ignore_eos", "logprobs", "keep"):
    del COMMANDS["chat"][_name]
