"""A prompt after documents, and how to generate from it."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from mlxchat.errors import UsageError
from mlxchat.options import Panel, check_options, option
from mlxchat.request.answer import Answer
from mlxchat.request.overnight import Overnight
from mlxchat.request.pairs import refuse_pairs
from mlxchat.request.setup import Setup
from mlxchat.request.template_args import parse_template_args, thinking_variables
from mlxchat.settings import GenerationSettings, Overflow


@dataclass(frozen=True, slots=True)
class Asking(GenerationSettings):
    """How to ask a model for text: what a single generation and a batch have in common.

    `raw` bypasses the chat template. `think` is "on", "off", "hide", or None for the template's
    default.
    """

    setup: Setup = field(default_factory=Setup)
    _: KW_ONLY
    system: str | None = option(
        None,
        "System prompt",
        Panel.INPUT,
        short="s",
        common=True,
        aliases=("system-prompt",),
        metavar="TEXT",
        if_unset="the template's own",
    )
    raw: bool = option(
        False, "Continue the text itself, without the chat template", Panel.INPUT, common=True
    )
    template_args: Mapping[str, Any] = option(
        None,
        "Set a variable of the chat template; repeatable",
        Panel.INPUT,
        factory=dict[str, Any],
        name="template-arg",
        metavar="KEY=VALUE",
        parse=parse_template_args,
        many=True,
        in_chat=True,
        saved=True,
    )
    think: str | None = option(
        None,
        "Show, turn off or hide the model's thoughts",
        Panel.OUTPUT,
        common=True,
        choices=("on", "off", "hide"),
        if_unset="shown, if the template thinks",
    )
    answer: Answer = field(default_factory=Answer)

    @property
    def hides_thoughts(self) -> bool:
        return self.think in ("off", "hide")

    def variables(self) -> dict[str, Any]:
        """The variables of the chat template; `template_args` override `think`."""
        thinking = {} if self.think is None else thinking_variables(self.think != "off")
        return {**thinking, **self.template_args}


@dataclass(frozen=True, slots=True)
class Request(Asking):
    """A prompt after documents, and how to generate from it.

    `template` is a text with the place of all these, `{input}`, or to go before them.
    `blocks` are documents that are read once and reused at any position. With `events`, the
    output is JSON Lines instead of text, with the `logprobs` likeliest tokens of each step.
    `newline` adds a line end to text that has none, except to that of a run with a checkpoint.
    `kept` is stored with a checkpoint and returned when it is resumed.
    """

    prompt: str | None = None
    _: KW_ONLY
    template: str | None = None
    files: tuple[str, ...] = option(
        (),
        "Read a file, folder or pattern, - for stdin; repeatable",
        Panel.INPUT,
        name="file",
        short="f",
        common=True,
        metavar="FILE",
        if_unset="piped stdin",
    )
    blocks: tuple[str, ...] = option(
        (),
        "Read a document as a separately cached block; repeatable",
        Panel.INPUT,
        name="block",
        metavar="FILE",
    )
    overflow: Overflow = option(
        Overflow.ROLL, "What to do with documents larger than the window", Panel.INPUT
    )
    events: bool = option(
        False, "Write JSON Lines instead of text", Panel.OUTPUT, name="json", common=True
    )
    newline: bool = option(True, "End the output with a newline", Panel.OUTPUT)
    overnight: Overnight = field(default_factory=Overnight)
    kept: Mapping[str, bool | None] = field(default_factory=dict[str, bool | None])

    def __post_init__(self) -> None:
        check_options(self)
        refuse_pairs(self, self.setup, self.answer, self.overnight)
        if self.logprobs is not None and not self.events:
            raise UsageError("--logprobs needs --json: plain text cannot include log-probabilities")
        if self.overflow.needs_question:
            way = f"--overflow {self.overflow}"
            if self.template:
                raise UsageError(f"{way} cannot be combined with a prompt of the configuration")
            if self.prompt is None or self.prompt == "-" or not self.prompt.strip():
                raise UsageError(f"{way} needs a question as the prompt, after the documents")

    def generation_settings(self) -> GenerationSettings:
        logprobs = (self.logprobs or 0) if self.events else None
        return replace(GenerationSettings.of(self), logprobs=logprobs)
