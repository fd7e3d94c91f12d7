"""How to open a model, and a prompt after documents: how to generate from it, and when it ends."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from mlxchat.errors import UsageError
from mlxchat.options import (
    A_FILE,
    CONSTRAINTS,
    NOT_EMPTY,
    Must,
    at_least,
    check_options,
    option,
    options_of,
    same_as,
)
from mlxchat.request.written import (
    parse_deadline,
    parse_duration_s,
    parse_template_args,
    parse_window,
    thinking_variables,
)
from mlxchat.settings import (
    DEFAULT_KEEP,
    CacheSettings,
    GenerationSettings,
    OnLoop,
    Overflow,
    SamplingSettings,
    random_seed,
)

Window = int | Literal["auto"] | None


@dataclass(frozen=True, slots=True)
class Setup:
    """How to open a model.

    `model` None means the default model. `window` is in tokens; None means unbounded, "auto" as
    much as the model and the memory allow. `sampling` holds fields of SamplingSettings; those that
    are missing follow the model's own recommendation.
    """

    model: str | None = option(
        None,
        "Model: alias, Hub ID, .gguf file or directory",
        short="m",
        common=True,
        metavar="MODEL",
        if_unset="the configured one, else one that fits",
        completes="model",
        saved=True,
    )
    adapter: str | None = option(
        None, "Directory of an adapter", aliases=("adapter-path",), metavar="DIR", saved=True
    )
    chat_template: Path | None = option(None, "Chat template to use instead of the model's")
    offline: bool = option(False, "Never use the network")
    device: str = option("auto", "Device to compute on", choices=("auto", "cpu", "gpu"))
    dtype: str = option(
        "auto",
        "Data type of the weights in memory",
        choices=("auto", "float16", "bfloat16", "float32", "stored"),
        saved=True,
    )
    pipeline: bool = option(False, "With mlx.launch: split the model by layers")
    window: Window = option(
        "auto",
        "Window in tokens, auto, or none for unbounded",
        common=True,
        name="max-kv-size",
        metavar="TOKENS",
        parse=parse_window,
        must=Must("be at least 1 token", lambda value: value == "auto" or value >= 1),
        saved=True,
    )
    keep: int = same_as(CacheSettings, "keep")
    prefill_step_size: int = same_as(CacheSettings, "prefill_step_size")
    prefix_cache: bool = option(True, "Keep long prompts in the prefix cache on disk")
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = field(default_factory=random_seed)

    def __post_init__(self) -> None:
        check_options(self)
        self.cache_settings()
        self.sampling_settings({})

    def cache_settings(self) -> CacheSettings:
        """The window before the model is loaded, None for "auto"; a default `keep` gives way."""
        window, keep = None if self.window == "auto" else self.window, self.keep
        keep = min(keep, window - 1) if window and keep == DEFAULT_KEEP else keep
        return CacheSettings(window, keep, self.prefill_step_size)

    def sampling_settings(self, recommended: Mapping[str, Any]) -> SamplingSettings:
        """The values that were chosen, else the `recommended` ones, else the defaults."""
        for name in sorted(self.sampling.keys() - (options_of(SamplingSettings).keys() - {"seed"})):
            hint = ": it is a field of Setup itself" * (name == "seed")
            raise UsageError(f"unknown sampling option {name!r}{hint}")
        return SamplingSettings(**{**recommended, **self.sampling}, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Answer:
    """The form of the answer, and how much of it is written.

    At most one of `schema`, `schema_multi`, `regex`, `choice` and `grammar` constrains it.
    `extract` writes only the first fenced code block. `prefill` is the answer's beginning.
    """

    schema: str | None = option(
        None,
        "Answer in JSON by a schema, its file, or names",
        aliases=("json-schema",),
        common=True,
        metavar="SCHEMA",
    )
    schema_multi: str | None = option(None, "Like --schema, for a list of items", metavar="SCHEMA")
    regex: str | None = option(None, "Answer with text that matches", metavar="REGEX")
    choice: tuple[str, ...] = option((), "Answer with this or another choice; repeatable")
    grammar: Path | None = option(None, "Answer by a grammar in Lark's format")
    schema_prompt: bool = option(False, "Add the schema to the system prompt")
    prefill: str | None = option(
        None, "Begin the answer with this text", aliases=("prefill-response",), must=NOT_EMPTY
    )
    extract: bool = option(False, "Write only the first code block", short="x")

    def __post_init__(self) -> None:
        check_options(self)

    def constraints(self) -> list[str]:
        """The fields that constrain the answer."""
        return [name for name in CONSTRAINTS if getattr(self, name) not in (None, ())]


@dataclass(frozen=True, slots=True)
class Overnight:
    """When a long run ends, and what it writes to disk.

    The run ends at `until`, or `lasting_s` seconds after generation begins. The text goes to the
    new file `output`; with `checkpoint`, a new directory, the default is output.txt in it.
    """

    until: datetime | None = option(
        None,
        "Stop at a local time, such as 07:00",
        common=True,
        metavar="TIME",
        parse=parse_deadline,
    )
    lasting_s: float | None = option(
        None,
        "Stop after a duration, such as 8h or 1h30m",
        name="for",
        metavar="DURATION",
        parse=parse_duration_s,
        must=Must("be above 0", lambda seconds: seconds > 0),
    )
    on_loop: OnLoop | None = option(
        None, "What to do if the text repeats itself", if_unset="stop, or warn for endless text"
    )
    output: Path | None = option(
        None,
        "Write the text to a new file",
        short="o",
        common=True,
        if_unset="stdout, or output.txt in the checkpoint",
        must=A_FILE,
    )
    checkpoint: Path | None = option(
        None, "Save checkpoints to a directory, to resume from", common=True, metavar="DIR"
    )
    checkpoint_every: int = option(
        2_000, "Tokens between checkpoints", metavar="TOKENS", must=at_least(1)
    )

    def __post_init__(self) -> None:
        check_options(self)

    def deadline_s(self, now_s: float) -> float | None:
        """The deadline in seconds since the epoch, if generation begins now."""
        if self.lasting_s is not None:
            return now_s + self.lasting_s
        return None if self.until is None else self.until.timestamp()

    def output_path(self) -> Path | None:
        return self.output or (self.checkpoint and self.checkpoint / "output.txt")


def name_stdin(value: Any, *names: str) -> None:
    """Let stdin be - among the files in these fields."""
    for name in names:
        named = ("-" if path == "/dev/stdin" else path for path in map(str, getattr(value, name)))
        object.__setattr__(value, name, tuple(named))


@dataclass(frozen=True, slots=True)
class Asking(GenerationSettings):
    """How to ask a model for text: what a single generation and a batch have in common.

    `raw` bypasses the chat template. `think` is "on", "off", "hide", or None for its default.
    """

    setup: Setup = field(default_factory=Setup)
    _: KW_ONLY
    system: str | None = option(
        None,
        "System prompt",
        short="s",
        common=True,
        aliases=("system-prompt",),
        if_unset="the template's own",
    )
    raw: bool = option(False, "Continue the text itself, without the chat template", common=True)
    template_args: Mapping[str, Any] = option(
        dict,
        "Set a variable of the chat template; repeatable",
        name="template-arg",
        metavar="KEY=VALUE",
        parse=parse_template_args,
        in_chat=True,
        saved=True,
    )
    think: str | None = option(
        None,
        "Show, turn off or hide the model's thoughts",
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
    """

    prompt: str | None = None
    _: KW_ONLY
    template: str | None = None
    files: tuple[str, ...] = option(
        (),
        "Read a file, folder or pattern, - for stdin; repeatable",
        name="file",
        short="f",
        common=True,
        metavar="FILE",
        if_unset="piped stdin",
        must=NOT_EMPTY,
    )
    blocks: tuple[str, ...] = option(
        (), "Read a document as a separately cached block; repeatable", name="block", metavar="FILE"
    )
    overflow: Overflow = option(Overflow.ROLL, "What to do with documents larger than the window")
    events: bool = option(False, "Write JSON Lines instead of text", name="json", common=True)
    overnight: Overnight = field(default_factory=Overnight)

    def __post_init__(self) -> None:
        check_options(self, self.setup, self.answer, self.overnight)
        name_stdin(self, "files", "blocks")
        if self.overflow in (Overflow.PASSAGES, Overflow.MAP):
            way = f"--overflow {self.overflow}"
            if self.template or self.prompt in (None, "-") or not self.prompt.strip():
                raise UsageError(f"{way} needs a question as the prompt, without -p or -")
