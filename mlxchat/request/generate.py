"""A prompt after documents, and how to generate from it: its form, and its end."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mlxchat.errors import UsageError
from mlxchat.options import NOT_EMPTY, Panel, at_least, check_options, option
from mlxchat.request.amounts import parse_bytes, parse_deadline, parse_duration_s
from mlxchat.request.pairs import CONSTRAINTS, refuse_pairs
from mlxchat.request.setup import Setup
from mlxchat.request.written import parse_template_args, thinking_variables
from mlxchat.settings import GenerationSettings, OnLoop, Overflow


@dataclass(frozen=True, slots=True)
class Answer:
    """The form of the answer, and how much of it is written.

    At most one of `schema`, `schema_multi`, `regex`, `choice` and `grammar` constrains it.
    `extract` writes only the first fenced code block. `prefill` is the
    answer's beginning, which the model continues.
    """

    schema: str | None = option(
        None,
        "Answer in JSON by a schema, its file, or names",
        Panel.ANSWER,
        common=True,
        metavar="SCHEMA",
    )
    schema_multi: str | None = option(
        None, "As a schema, but for a list of items", Panel.ANSWER, metavar="SCHEMA"
    )
    regex: str | None = option(None, "Answer with text that matches", Panel.ANSWER, metavar="REGEX")
    choice: tuple[str, ...] = option(
        (), "Answer with this or another choice; repeatable", Panel.ANSWER, metavar="TEXT"
    )
    grammar: Path | None = option(None, "Answer by a grammar in Lark's format", Panel.ANSWER)
    schema_prompt: bool = option(
        False, "Add the schema to the system prompt", Panel.ANSWER, negatable=False
    )
    prefill: str | None = option(
        None, "Begin the answer with this text", Panel.ANSWER, metavar="TEXT", must=NOT_EMPTY
    )
    extract: bool = option(
        False, "Write only the first code block", Panel.ANSWER, short="x", negatable=False
    )

    def __post_init__(self) -> None:
        check_options(self)
        refuse_pairs(self)
        if self.schema_prompt and not {"schema", "schema_multi"} & set(self.constraints()):
            raise UsageError("--schema-prompt needs --schema")

    def constraints(self) -> list[str]:
        """The fields that constrain the answer."""
        return [name for name in CONSTRAINTS if getattr(self, name) not in (None, ())]


@dataclass(frozen=True, slots=True)
class Overnight:
    """When a long run ends, and what it writes to disk.

    The run ends at `until`, or `lasting_s` seconds after generation begins, or before the text
    exceeds `max_bytes`. The text goes to the new file `output`; with `checkpoint`, a new directory,
    the default is output.txt in it.
    """

    until: datetime | None = option(
        None,
        "Stop at a local time, such as 07:00",
        Panel.END,
        common=True,
        metavar="TIME",
        parse=parse_deadline,
    )
    lasting_s: float | None = option(
        None,
        "Stop after a duration, such as 8h or 1h30m",
        Panel.END,
        name="for",
        metavar="DURATION",
        parse=parse_duration_s,
    )
    max_bytes: int | None = option(
        None,
        "Stop before the text exceeds SIZE, such as 100MB",
        Panel.END,
        metavar="SIZE",
        parse=parse_bytes,
    )
    on_loop: OnLoop | None = option(
        None,
        "What to do if the text repeats itself",
        Panel.END,
        if_unset="stop, or warn for endless text",
    )
    output: Path | None = option(
        None,
        "Write the text to a new file",
        Panel.OUTPUT,
        short="o",
        common=True,
        if_unset="stdout, or output.txt in the checkpoint",
    )
    checkpoint: Path | None = option(
        None,
        "Save checkpoints to a new directory, to resume from",
        Panel.OVERNIGHT,
        common=True,
        metavar="DIR",
    )
    checkpoint_every: int = option(
        2_000, "Tokens between checkpoints", Panel.OVERNIGHT, metavar="TOKENS", must=at_least(1)
    )

    def __post_init__(self) -> None:
        check_options(self)
        refuse_pairs(self)

    @property
    def keeps_awake(self) -> bool:
        """Whether to keep the machine awake."""
        return any(each is not None for each in (self.checkpoint, self.until, self.lasting_s))

    def action_on_loop(self, *, endless: bool) -> OnLoop:
        """What to do if the text repeats itself; `endless` text goes on all the same."""
        return self.on_loop or (OnLoop.WARN if endless else OnLoop.STOP)

    def deadline_s(self, now_s: float) -> float | None:
        """The deadline in seconds since the epoch, if generation begins now."""
        if self.lasting_s is not None:
            return now_s + self.lasting_s
        return None if self.until is None else self.until.timestamp()

    def output_path(self) -> Path | None:
        """The output file, if any."""
        if self.output is not None:
            return self.output.expanduser()
        return None if self.checkpoint is None else self.checkpoint / "output.txt"


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
