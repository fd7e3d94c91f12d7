"""Requests to the application, as frozen dataclasses: open a model, generate, chat.

Every option is declared once, here or in `settings`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from mlxchat.amounts import parse_bytes, parse_deadline, parse_duration_s, parse_window
from mlxchat.errors import UsageError
from mlxchat.options import (
    Group,
    Must,
    Option,
    at_least,
    check_options,
    option,
    options_of,
    same_as,
)
from mlxchat.settings import (
    CacheSettings,
    GenerationSettings,
    OnLoop,
    Roll,
    SamplingSettings,
    StepSize,
    random_seed,
)
from mlxchat.template_args import parse_template_args, thinking_variables
from mlxchat.wording import Field

Window = int | Literal["auto"] | None


# Tokens between pauses, at which a raised temperature is lowered again.
NUDGE_EVERY = 64


@dataclass(frozen=True, slots=True)
class Setup:
    """How to open a model.

    `model` None means the default model. `window` is in tokens; None means unbounded, "auto" as
    much as the model and the memory allow. `sampling` holds fields of SamplingSettings; those that
    are missing or None follow the model's own recommendation.
    """

    model: str | None = option(
        None,
        "Model: alias, Hub ID, .gguf file or directory",
        Group.MODEL,
        short="m",
        common=True,
        metavar="MODEL",
        if_unset="the configured one, else one that fits",
        completes="model",
        saved=True,
    )
    offline: bool = option(False, "Never use the network", Group.MODEL)
    device: str = option(
        "auto",
        "Device to compute on",
        Group.MODEL,
        choices=("auto", "cpu", "gpu"),
    )
    dtype: str = option(
        "auto",
        "Data type of the weights in memory",
        Group.MODEL,
        choices=("auto", "float16", "bfloat16", "float32", "stored"),
        saved=True,
    )
    pipeline: bool = option(False, "With mlx.launch: split the model by layers", Group.MODEL)
    window: Window = option(
        "auto",
        "Window in tokens, auto, or none for unbounded",
        Group.WINDOW,
        common=True,
        name="max-kv-size",
        metavar="TOKENS",
        parse=parse_window,
        must=Must("be at least 1 token", lambda value: value == "auto" or value >= 1),
        project=True,
        unlimited=("none",),
        saved=True,
    )
    keep: int = same_as(CacheSettings, "keep")
    prefill_step_size: StepSize = same_as(CacheSettings, "prefill_step_size")
    prefix_cache: bool = option(True, "Keep long prompts in the prefix cache on disk", Group.WINDOW)
    prefix_cache_bytes: int = option(
        4_000_000_000,
        "Maximum size of the prefix cache",
        Group.WINDOW,
        name="prefix-cache-size",
        metavar="SIZE",
        parse=parse_bytes,
        written="4GB",
    )
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = field(default_factory=random_seed)

    def __post_init__(self) -> None:
        check_options(self)

    def cache_settings(self) -> CacheSettings:
        """The window as known before the model is loaded: None if it is "auto"."""
        window = None if self.window == "auto" else self.window
        return CacheSettings(window, self.keep, self.prefill_step_size)

    def given_sampling(self) -> dict[str, Any]:
        """The fields of SamplingSettings that were chosen."""
        return {name: value for name, value in self.sampling.items() if value is not None}

    def sampling_settings(self, recommended: Mapping[str, Any]) -> SamplingSettings:
        """The values that were chosen, else the `recommended` ones, else the defaults."""
        return SamplingSettings(**{**recommended, **self.given_sampling()}, seed=self.seed)

    def check(self) -> None:
        """Raise UsageError for invalid values, before anything takes time."""
        self.cache_settings()
        self.sampling_settings({})


@dataclass(frozen=True, slots=True)
class Overnight:
    """When a long run ends, and what it writes to disk.

    The run ends at `until`, or `lasting_s` seconds after generation begins, or before the text
    exceeds `max_bytes`. The text goes to the new file `output`; with `checkpoint`, a new directory,
    the default is output.txt in it. Every `rotate_bytes`, the text continues in another file.
    """

    until: datetime | None = option(
        None,
        "Stop at a local time, such as 07:00",
        Group.END,
        common=True,
        metavar="TIME",
        parse=parse_deadline,
    )
    lasting_s: float | None = option(
        None,
        "Stop after a duration, such as 8h or 1h30m",
        Group.END,
        name="for",
        metavar="DURATION",
        parse=parse_duration_s,
    )
    max_bytes: int | None = option(
        None,
        "Stop before the text exceeds SIZE, such as 100MB",
        Group.END,
        metavar="SIZE",
        parse=parse_bytes,
    )
    on_loop: OnLoop = option(
        OnLoop.WARN,
        "What to do if the text repeats itself",
        Group.END,
        project=True,
    )
    output: Path | None = option(
        None,
        "Write the text to a new file",
        Group.OUTPUT,
        short="o",
        common=True,
        metavar="FILE",
        parse=Path,
        if_unset="stdout, or output.txt in the checkpoint",
    )
    rotate_bytes: int | None = option(
        None,
        "Start another file every SIZE, such as 50MB",
        Group.OUTPUT,
        name="rotate",
        metavar="SIZE",
        parse=parse_bytes,
        if_unset="never",
    )
    metrics: Path | None = option(
        None,
        "Append a line of JSON figures every minute",
        Group.OUTPUT,
        metavar="FILE",
        parse=Path,
    )
    checkpoint: Path | None = option(
        None,
        "Save checkpoints to a new directory, to resume from",
        Group.OVERNIGHT,
        common=True,
        metavar="DIR",
        parse=Path,
    )
    checkpoint_every: int = option(
        2_000,
        "Tokens between checkpoints",
        Group.OVERNIGHT,
        metavar="TOKENS",
        must=at_least(1, "be at least 1 token"),
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.until is not None and self.lasting_s is not None:
            raise UsageError(
                Field("until"),
                " and ",
                Field("lasting_s"),
                " cannot be combined",
            )
        if self.rotate_bytes is not None and self.output_path() is None:
            raise UsageError(
                Field("rotate_bytes"),
                " needs a file to write to: ",
                Field("output"),
                " or ",
                Field("checkpoint"),
            )

    @property
    def keeps_awake(self) -> bool:
        """Whether to keep the machine awake."""
        return any(each is not None for each in (self.checkpoint, self.until, self.lasting_s))

    def pause_every(self) -> int | None:
        if self.on_loop is OnLoop.NUDGE:
            return NUDGE_EVERY
        return None if self.checkpoint is None else self.checkpoint_every

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
class Answer:
    """The form of the answer, and how much of it is written.

    At most one of `schema`, `schema_multi`, `regex`, `choice` and `grammar` constrains it.
    `extract` and `extract_last` write only the first or last fenced code block.
    """

    schema: str | None = option(
        None,
        "Answer in JSON by a schema, its file, or names",
        Group.ANSWER,
        common=True,
        metavar="SCHEMA",
    )
    schema_multi: str | None = option(
        None, "As a schema, but for a list of items", Group.ANSWER, metavar="SCHEMA"
    )
    regex: str | None = option(None, "Answer with text that matches", Group.ANSWER, metavar="REGEX")
    choice: tuple[str, ...] = option(
        (),
        "Answer with this or another choice; repeatable",
        Group.ANSWER,
        metavar="TEXT",
    )
    grammar: Path | None = option(
        None, "Answer by a grammar in Lark's format", Group.ANSWER, metavar="FILE", parse=Path
    )
    schema_prompt: bool = option(
        False, "Add the schema to the system prompt", Group.ANSWER, negatable=False
    )
    extract: bool = option(
        False, "Write only the first code block", Group.ANSWER, short="x", negatable=False
    )
    extract_last: bool = option(
        False, "Write only the last code block", Group.ANSWER, negatable=False
    )

    def __post_init__(self) -> None:
        check_options(self)
        given = self.constraints()
        if len(given) > 1:
            raise UsageError(Field(given[0]), " and ", Field(given[1]), " cannot be combined")
        if self.schema_prompt and not {"schema", "schema_multi"} & set(given):
            raise UsageError(Field("schema_prompt"), " needs ", Field("schema"))
        if self.extracts and given:
            name = "extract" if self.extract else "extract_last"
            raise UsageError(Field(name), " and ", Field(given[0]), " cannot be combined")

    def constraints(self) -> list[str]:
        """The fields that constrain the answer."""
        names = ("schema", "schema_multi", "regex", "choice", "grammar")
        return [name for name in names if getattr(self, name) not in (None, ())]

    @property
    def extracts(self) -> bool:
        return self.extract or self.extract_last


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt after documents, and how to generate from it.

    `blocks` are documents that are read once and reused at any position. `raw` bypasses the chat
    template. `think` is "on", "off", "hide", or None for the template's default. With `events`, the
    output is JSON Lines instead of text, with the `logprobs` likeliest tokens of each step.
    `newline` adds a line end to text that has none, except to that of a run with a checkpoint.
    `kept` is stored with a checkpoint and returned when it is resumed.
    """

    setup: Setup = field(default_factory=Setup)
    prompt: str | None = None
    files: tuple[str, ...] = option(
        (),
        "Read a document, - for stdin; repeatable",
        Group.INPUT,
        name="file",
        short="f",
        common=True,
        metavar="FILE",
        if_unset="piped stdin",
    )
    blocks: tuple[str, ...] = option(
        (),
        "Read a document as a separately cached block; repeatable",
        Group.INPUT,
        name="block",
        metavar="FILE",
    )
    system: str | None = option(
        None,
        "System prompt",
        Group.INPUT,
        short="s",
        common=True,
        aliases=("system-prompt",),
        metavar="TEXT",
        if_unset="the template's own",
        project=True,
    )
    raw: bool = option(
        False, "Continue the text itself, without the chat template", Group.INPUT, common=True
    )
    template_args: Mapping[str, Any] = option(
        None,
        "Set a variable of the chat template; repeatable",
        Group.INPUT,
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
        Group.OUTPUT,
        common=True,
        choices=("on", "off", "hide"),
        if_unset="shown, if the template thinks",
        project=True,
    )
    max_tokens: int = same_as(GenerationSettings, "max_tokens")
    stop: tuple[str, ...] = same_as(GenerationSettings, "stop")
    ignore_eos: bool = same_as(GenerationSettings, "ignore_eos")
    lookup: bool | None = same_as(GenerationSettings, "lookup")
    num_draft_tokens: int | None = same_as(GenerationSettings, "num_draft_tokens")
    events: bool = option(
        False, "Write JSON Lines instead of text", Group.OUTPUT, name="json", common=True
    )
    newline: bool = option(True, "End the output with a newline", Group.OUTPUT)
    logprobs: int | None = same_as(GenerationSettings, "logprobs")
    answer: Answer = field(default_factory=Answer)
    overnight: Overnight = field(default_factory=Overnight)
    kept: Mapping[str, bool | None] = field(default_factory=dict[str, bool | None])

    def __post_init__(self) -> None:
        check_options(self)
        if self.logprobs is not None and not self.events:
            raise UsageError(
                Field("logprobs"),
                " needs ",
                Field("events", True),
                ": plain text cannot include log-probabilities",
            )
        if self.raw and self.system is not None:
            raise UsageError(
                Field("system"), " needs the chat template, which ", Field("raw"), " bypasses"
            )
        if self.raw and self.variables():
            raise UsageError(
                Field("think"),
                " and ",
                Field("template_args"),
                " need the chat template, which ",
                Field("raw"),
                " bypasses",
            )
        long = self.overnight
        if self.events and (long.checkpoint is not None or long.max_bytes is not None):
            raise UsageError(
                Field("events"),
                " cannot be combined with ",
                Field("checkpoint"),
                " or ",
                Field("max_bytes"),
                ", which need text",
            )
        if self.generation_settings().wants_drafts and long.checkpoint is not None:
            name = "lookup" if self.lookup else "num_draft_tokens"
            raise UsageError(
                Field(name, True if self.lookup else self.num_draft_tokens),
                " and ",
                Field("checkpoint"),
                " cannot be combined: a resumed run must write the same bytes",
            )
        if self.blocks:
            self._check_blocks()
        self._check_answer()
        self.generation_settings()
        self.setup.check()

    def _check_answer(self) -> None:
        given = self.answer.constraints()
        constraint = given[0] if given else None
        extract = "extract" if self.answer.extract else "extract_last"
        first = constraint or (extract if self.answer.extracts else None)
        if first is not None and self.overnight.checkpoint is not None:
            raise UsageError(Field(first), " and ", Field("checkpoint"), " cannot be combined")
        if self.answer.extracts and self.events:
            raise UsageError(Field(extract), " and ", Field("events"), " cannot be combined")
        if constraint is not None and self.ignore_eos:
            raise UsageError(Field(constraint), " and ", Field("ignore_eos"), " cannot be combined")
        if self.answer.schema_prompt and self.raw:
            raise UsageError(
                Field("schema_prompt"),
                " needs the chat template, which ",
                Field("raw"),
                " bypasses",
            )

    def _check_blocks(self) -> None:
        if self.overnight.checkpoint is not None:
            raise UsageError(
                Field("blocks"),
                " and ",
                Field("checkpoint"),
                " cannot be combined: pass the documents with ",
                Field("files"),
            )
        if not self.setup.prefix_cache:
            raise UsageError(
                Field("blocks"), " needs the prefix cache: use ", Field("prefix_cache", True)
            )

    @property
    def hides_thoughts(self) -> bool:
        return self.think in ("off", "hide")

    def variables(self) -> dict[str, Any]:
        """The variables of the chat template; `template_args` override `think`."""
        thinking = {} if self.think is None else thinking_variables(self.think != "off")
        return {**thinking, **self.template_args}

    def generation_settings(self) -> GenerationSettings:
        return GenerationSettings(
            max_tokens=self.max_tokens,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            lookup=self.lookup,
            num_draft_tokens=self.num_draft_tokens,
            logprobs=(self.logprobs or 0) if self.events else None,
        )


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How to open a chat.

    `think` is "on", "off" or "hide". `exact` refuses to resume a session whose cache cannot be
    restored bit for bit. A resumed session restores its own model, dtype, window, keep, roll and
    template_args, except those named in `chosen`, which are taken from here. None means all that
    differ from their defaults.
    """

    setup: Setup = field(default_factory=lambda: Setup(keep=0))
    system: str | None = same_as(Request, "system")
    template_args: Mapping[str, Any] = same_as(Request, "template_args")
    exact: bool = option(
        False,
        "Refuse to resume unless the cache restores bit for bit",
        Group.SESSION,
    )
    roll: Roll = option(
        Roll.SHIFT,
        "How to make room when the window is full",
        Group.WINDOW,
        project=True,
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
        default = ChatOptions()
        differs = {
            name
            for ours, theirs in ((self, default), (self.setup, default.setup))
            for name in options_of(type(ours))
            if getattr(ours, name) != getattr(theirs, name)
        }
        # The default of Setup is not a choice: it is meant for a run, not for a chat.
        return frozenset(differs - ({"keep"} if self.setup.keep == Setup().keep else set()))


def _all_of(*kinds: type) -> dict[str, Option]:
    return {name: each for kind in kinds for name, each in options_of(kind).items()}


CHAT_KEEP = replace(options_of(Setup)["keep"], default=ChatOptions().setup.keep)

# Generation is greedy without a recommendation; a chat always has one.
CHAT_SAMPLING = {
    name: replace(each, if_unset=each.if_unset or "as recommended for the model")
    for name, each in options_of(SamplingSettings).items()
}

IN_CHAT = ("max_tokens", "stop", "lookup", "num_draft_tokens")

# The options of the two commands that run a model, by field.
GENERATE = _all_of(Request, Setup, SamplingSettings, Answer, Overnight)
CHAT = {
    **_all_of(ChatOptions, Setup),
    **CHAT_SAMPLING,
    **{name: options_of(GenerationSettings)[name] for name in IN_CHAT},
    **options_of(Answer),
    "keep": CHAT_KEEP,
}
