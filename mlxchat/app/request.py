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
            raise UsageError("an end and a duration both say when to end: give one of them")
        if self.checkpoint_every < 1:
            raise UsageError(
                f"a checkpoint must come every 1 token or more, got {self.checkpoint_every}: "
                "make it at least 1 token"
            )
        if self.rotate_bytes is not None and self.output_path() is None:
            raise UsageError("rotation needs a file to write to: an output, or a checkpoint")

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
            raise UsageError("log-probabilities need JSON: text has no place for them")
        if self.raw and self.system is not None:
            raise UsageError("a system prompt needs the chat template, which raw leaves out")
        if self.raw and self.variables():
            raise UsageError(
                "thinking and template arguments need the chat template, which raw leaves out"
            )
        long = self.overnight
        if self.events and (long.checkpoint is not None or long.max_bytes is not None):
            raise UsageError(
                "JSON goes with neither a checkpoint nor a maximum of bytes: they are for text"
            )
        if self.blocks:
            self._check_blocks()
        self.generation_settings()
        self.setup.check()

    def _check_blocks(self) -> None:
        if self.overnight.checkpoint is not None:
            raise UsageError(
                "blocks and a checkpoint cannot be combined: give the documents of a run that is "
                "to be resumed as files"
            )
        if not self.setup.prefix_cache:
            raise UsageError("blocks are kept in the prefix cache, which is turned off")

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
