"""What can be asked of the application, as frozen dataclasses: a model, a generation, a chat.

Each field that people can choose is declared here or in `settings`, once.
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
    random_seed,
)
from mlxchat.template_args import parse_template_args, thinking_variables
from mlxchat.wording import Field

Window = int | Literal["auto"] | None


# A raised temperature holds from one pause to the next.
NUDGE_EVERY = 64


@dataclass(frozen=True, slots=True)
class Setup:
    """What a model is opened with.

    `model` None is the default one. `window` is in tokens; None has no bound, "auto" is what the
    model and the memory allow. `sampling` holds fields of SamplingSettings; for those it lacks or
    has as None, the model's makers are followed.
    """

    model: str | None = option(
        None,
        "Directory, .gguf file, alias or Hub ID.",
        Group.MODEL,
        short="m",
        metavar="MODEL",
        if_unset="the configured one, a recommended one that fits, the embedded one",
        completes="model",
        saved=True,
    )
    offline: bool = option(False, "Never use the network, as with HF_HUB_OFFLINE=1.", Group.MODEL)
    device: str = option(
        "auto",
        "Where to compute. auto: the GPU if there is one.",
        Group.MODEL,
        choices=("auto", "cpu", "gpu"),
    )
    dtype: str = option(
        "auto",
        "Data type of the weights in memory. auto: stored on a GPU, float32 on a CPU if that fits.",
        Group.MODEL,
        choices=("auto", "float16", "bfloat16", "float32", "stored"),
        saved=True,
    )
    pipeline: bool = option(
        False,
        "Under mlx.launch: give each rank some of the layers, instead of a share of each.",
        Group.MODEL,
    )
    window: Window = option(
        "auto",
        "Window in tokens; older ones are forgotten. auto: the trained context or what fits in "
        "memory; none: unbounded.",
        Group.WINDOW,
        name="max-kv-size",
        metavar="auto|none|TOKENS",
        parse=parse_window,
        must=Must("be at least 1 token", lambda value: value == "auto" or value >= 1),
        project=True,
        unlimited=("none",),
        saved=True,
    )
    keep: int = same_as(CacheSettings, "keep")
    prefill_step_size: int = same_as(CacheSettings, "prefill_step_size")
    prefix_cache: bool = option(
        True, "Keep the beginnings of long prompts on disk, to read them only once.", Group.WINDOW
    )
    prefix_cache_bytes: int = option(
        4_000_000_000,
        "Maximum size of the prefix cache; least recently used go first.",
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
        """The window as far as it is known before the model is: none yet if it is "auto"."""
        window = None if self.window == "auto" else self.window
        return CacheSettings(window, self.keep, self.prefill_step_size)

    def given_sampling(self) -> dict[str, Any]:
        """The fields of SamplingSettings that were chosen."""
        return {name: value for name, value in self.sampling.items() if value is not None}

    def sampling_settings(self, recommended: Mapping[str, Any]) -> SamplingSettings:
        """The values that were chosen, else the `recommended` ones, else the defaults."""
        return SamplingSettings(**{**recommended, **self.given_sampling()}, seed=self.seed)

    def check(self) -> None:
        """Raise UsageError for values that no model can have, before anything takes time."""
        self.cache_settings()
        self.sampling_settings({})


@dataclass(frozen=True, slots=True)
class Overnight:
    """When a long run ends, and what it leaves on the disk.

    It ends at `until`, or `lasting_s` seconds after generation begins, or before its text has more
    than `max_bytes`. The text goes to the new file `output`; with `checkpoint`, a new directory, by
    default to output.txt in it. Past `rotate_bytes` it continues in further files.
    """

    until: datetime | None = option(
        None,
        "End at a local time: 07:00, or 2026-11-22 07:00.",
        Group.END,
        metavar="TIME",
        parse=parse_deadline,
    )
    lasting_s: float | None = option(
        None,
        "End after this long: 8h, 1h30m.",
        Group.END,
        name="for",
        metavar="DURATION",
        parse=parse_duration_s,
    )
    max_bytes: int | None = option(
        None,
        "End before the text is larger: 100MB.",
        Group.END,
        metavar="SIZE",
        parse=parse_bytes,
    )
    on_loop: OnLoop = option(
        OnLoop.WARN,
        "If the text repeats itself: warn, stop with exit status 3, or nudge (raise the "
        "temperature for a while).",
        Group.END,
        project=True,
    )
    output: Path | None = option(
        None,
        "Write the text to a new file.",
        Group.OUTPUT,
        short="o",
        metavar="FILE",
        parse=Path,
        if_unset="stdout; with a checkpoint, output.txt in its directory",
    )
    rotate_bytes: int | None = option(
        None,
        "Continue in FILE.001, FILE.002 … when the file reaches this size: 50MB.",
        Group.OUTPUT,
        name="rotate",
        metavar="SIZE",
        parse=parse_bytes,
        if_unset="never",
    )
    metrics: Path | None = option(
        None,
        "Append a JSON line of figures every minute.",
        Group.OUTPUT,
        metavar="FILE",
        parse=Path,
    )
    checkpoint: Path | None = option(
        None,
        "Keep what is needed to resume after a crash in a new directory.",
        Group.OVERNIGHT,
        metavar="DIR",
        parse=Path,
    )
    checkpoint_every: int = option(
        2_000,
        "Tokens between two checkpoints.",
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
                " both say when to end: give one of them",
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
        """Whether it is worth keeping the machine awake for."""
        return any(each is not None for each in (self.checkpoint, self.until, self.lasting_s))

    def pause_every(self) -> int | None:
        if self.on_loop is OnLoop.NUDGE:
            return NUDGE_EVERY
        return None if self.checkpoint is None else self.checkpoint_every

    def deadline_s(self, now_s: float) -> float | None:
        """When to end, in seconds since the epoch, if generation begins now."""
        if self.lasting_s is not None:
            return now_s + self.lasting_s
        return None if self.until is None else self.until.timestamp()

    def output_path(self) -> Path | None:
        """The file that the text goes to, if any."""
        if self.output is not None:
            return self.output.expanduser()
        return None if self.checkpoint is None else self.checkpoint / "output.txt"


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt after documents, and how to continue it.

    `blocks` are documents that are read once and reused anywhere. `raw` leaves the chat template
    out. `think` is "on", "off", "hide", or None to leave it to the template. With `events`, what is
    written is JSON Lines in place of text, `logprobs` likeliest tokens of each step included.
    `kept` is stored with a checkpoint and returned when it is resumed.
    """

    setup: Setup = field(default_factory=Setup)
    prompt: str | None = None
    files: tuple[str, ...] = option(
        (),
        "Document to read, - for stdin; repeatable.",
        Group.INPUT,
        name="file",
        short="f",
        metavar="FILE",
        if_unset="stdin if it is piped",
    )
    blocks: tuple[str, ...] = option(
        (),
        "Document to read once and keep, for any later prompt: nearly, not exactly, what a file "
        "gives; repeatable.",
        Group.INPUT,
        name="block",
        metavar="FILE",
    )
    system: str | None = option(
        None,
        "System prompt.",
        Group.INPUT,
        short="s",
        aliases=("system-prompt",),
        metavar="TEXT",
        if_unset="the chat template's own",
        project=True,
    )
    raw: bool = option(False, "Continue the text itself, without the chat template.", Group.INPUT)
    template_args: Mapping[str, Any] = option(
        None,
        "Variable of the chat template, such as reasoning_effort=high; repeatable.",
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
        "A model's thoughts: shown, turned off, or hidden.",
        Group.OUTPUT,
        choices=("on", "off", "hide"),
        if_unset="as the template has them, shown",
        project=True,
    )
    max_tokens: int = same_as(GenerationSettings, "max_tokens")
    stop: tuple[str, ...] = same_as(GenerationSettings, "stop")
    ignore_eos: bool = same_as(GenerationSettings, "ignore_eos")
    events: bool = option(False, "Write JSON Lines instead of text.", Group.OUTPUT, name="json")
    newline: bool = option(True, "End the output with a newline", Group.OUTPUT)
    logprobs: int | None = same_as(GenerationSettings, "logprobs")
    overnight: Overnight = field(default_factory=Overnight)
    kept: Mapping[str, bool | None] = field(default_factory=dict[str, bool | None])

    def __post_init__(self) -> None:
        check_options(self)
        if self.logprobs is not None and not self.events:
            raise UsageError(
                Field("logprobs"),
                " needs ",
                Field("events", True),
                ": text has no place for log-probabilities",
            )
        if self.raw and self.system is not None:
            raise UsageError(
                Field("system"), " needs the chat template, which ", Field("raw"), " leaves out"
            )
        if self.raw and self.variables():
            raise UsageError(
                Field("think"),
                " and ",
                Field("template_args"),
                " need the chat template, which ",
                Field("raw"),
                " leaves out",
            )
        long = self.overnight
        if self.events and (long.checkpoint is not None or long.max_bytes is not None):
            raise UsageError(
                Field("events"),
                " goes with neither ",
                Field("checkpoint"),
                " nor ",
                Field("max_bytes"),
                ": they are for text",
            )
        if self.blocks:
            self._check_blocks()
        self.generation_settings()
        self.setup.check()

    def _check_blocks(self) -> None:
        if self.overnight.checkpoint is not None:
            raise UsageError(
                Field("blocks"),
                " and ",
                Field("checkpoint"),
                " cannot be combined: give the documents of a run that is to be resumed with ",
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
        """What the chat template is given: an argument has the last word."""
        thinking = {} if self.think is None else thinking_variables(self.think != "off")
        return {**thinking, **self.template_args}

    def generation_settings(self) -> GenerationSettings:
        return GenerationSettings(
            max_tokens=self.max_tokens,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            logprobs=(self.logprobs or 0) if self.events else None,
        )


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a chat is opened with.

    `think` is "on", "off" or "hide". `exact` refuses to resume a session whose cache cannot be
    restored to the bit. A resumed session brings its own model, dtype, window, keep, roll and
    template_args; `chosen` names those that are to be as they are here. None: all that differ from
    their defaults.
    """

    setup: Setup = field(default_factory=lambda: Setup(keep=0))
    system: str | None = same_as(Request, "system")
    template_args: Mapping[str, Any] = same_as(Request, "template_args")
    exact: bool = option(
        False,
        "Fail if the cache cannot be restored to the bit, instead of reading the transcript again.",
        Group.SESSION,
    )
    roll: Roll = option(
        Roll.SHIFT,
        "If the window is full: shift evicts the oldest turns in place, refill drops them and "
        "reads the rest again, stop forgets nothing and answers no more.",
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
        """The fields that a session's own do not replace."""
        if self.chosen is not None:
            return self.chosen
        default = ChatOptions()
        differs = {
            name
            for ours, theirs in ((self, default), (self.setup, default.setup))
            for name in options_of(type(ours))
            if getattr(ours, name) != getattr(theirs, name)
        }
        # Setup's own default is not a choice: it suits a run, not a chat.
        return frozenset(differs - ({"keep"} if self.setup.keep == Setup().keep else set()))


def _all_of(*kinds: type) -> dict[str, Option]:
    return {name: each for kind in kinds for name, each in options_of(kind).items()}


CHAT_KEEP = replace(
    options_of(Setup)["keep"],
    default=ChatOptions().setup.keep,
    help="First tokens, never evicted, even if the system prompt and what the template puts "
    "before the first message are fewer.",
)

# Generation is greedy without a recommendation; a chat always has one.
CHAT_SAMPLING = {
    name: replace(each, if_unset=each.if_unset or "as recommended for the model")
    for name, each in options_of(SamplingSettings).items()
}

# What the two commands that run a model have, by field.
GENERATE = _all_of(Request, Setup, SamplingSettings, Overnight)
CHAT = {
    **_all_of(ChatOptions, Setup),
    **CHAT_SAMPLING,
    **{name: options_of(GenerationSettings)[name] for name in ("max_tokens", "stop")},
    "keep": CHAT_KEEP,
}
