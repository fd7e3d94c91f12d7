"""What to generate, from which prompt, and until when."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from mlxchat.app.observer import Observer
from mlxchat.app.setup import Setup
from mlxchat.errors import UsageError
from mlxchat.settings import DEFAULT_CHECKPOINT_EVERY, GenerationSettings, OnLoop
from mlxchat.text.documents import Input, name_of, read_input
from mlxchat.text.parts import Part, encode_parts
from mlxchat.text.template import thinking_variables
from mlxchat.text.tokens import Prompt, Tokenizer
from mlxchat.wording import Field

# A raised temperature holds from one pause to the next.
NUDGE_EVERY = 64


@dataclass(frozen=True, slots=True)
class Overnight:
    """When a long run ends, and what it leaves on the disk.

    It ends at `until`, or `lasting_s` seconds after generation begins, or before its text has more
    than `max_bytes`. The text goes to the new file `output`; with `checkpoint`, a new directory, by
    default to output.txt in it. Past `rotate_bytes` it continues in further files.
    """

    output: Path | None = None
    rotate_bytes: int | None = None
    checkpoint: Path | None = None
    checkpoint_every: int = DEFAULT_CHECKPOINT_EVERY
    until: datetime | None = None
    lasting_s: float | None = None
    max_bytes: int | None = None
    on_loop: OnLoop = OnLoop.WARN
    metrics: Path | None = None

    def __post_init__(self) -> None:
        if self.until is not None and self.lasting_s is not None:
            raise UsageError(
                Field("until"),
                " and ",
                Field("lasting_s"),
                " both say when to end: give one of them",
            )
        if self.checkpoint_every < 1:
            raise UsageError(
                Field("checkpoint_every"),
                f" must be at least 1 token, got {self.checkpoint_every}",
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
    `kept` is stored with a checkpoint, for whoever resumes it.
    """

    setup: Setup = field(default_factory=Setup)
    prompt: str | None = None
    files: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    system: str | None = None
    raw: bool = False
    think: str | None = None
    template_args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    max_tokens: int = GenerationSettings().max_tokens
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    events: bool = False
    logprobs: int | None = None
    overnight: Overnight = field(default_factory=Overnight)
    kept: Mapping[str, bool | None] = field(default_factory=dict[str, bool | None])

    def __post_init__(self) -> None:
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

    def read(self, piped: BinaryIO | None) -> Input:
        """The documents and the prompt as one text. Raises InputError."""
        return read_input(self.prompt, self.files, piped, self.blocks)


def encode(request: Request, document: Input, tokenizer: Tokenizer, observer: Observer) -> Prompt:
    """The tokens of what `request` read."""
    text = document.text
    with observer.counting("tokenizing", "characters") as on_progress:
        if document.blocks:
            named = zip(document.blocks, request.blocks, strict=True)
            blocks = [Part(block, cache=True, name=name_of(name)) for block, name in named]
            return encode_parts(
                tokenizer,
                [*blocks, Part(text)],
                request.system,
                raw=request.raw,
                variables=request.variables(),
                on_progress=on_progress,
            )
        if request.raw:
            return tokenizer.raw_prompt(text, on_progress)
        return tokenizer.prompt(text, request.system, on_progress, variables=request.variables())
