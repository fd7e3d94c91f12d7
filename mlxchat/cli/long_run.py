"""A generation that may run for nights: when it ends, how it goes, and what it leaves on the disk.

`run` has the loop over the tokens; here is all that happens beside it.
"""

import math
import time
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.cache import Cache, bytes_held, tokens_held
from mlxchat.cache.layers import windows
from mlxchat.chat.ledger import Ledger
from mlxchat.cli.amounts import parse_bytes, parse_deadline, parse_duration_s
from mlxchat.engine.generate import Midway, Stats, Token
from mlxchat.engine.pace import Pace, from_run_lengths, run_lengths
from mlxchat.engine.repetition import LoopDetector, Nudge
from mlxchat.errors import DeviceError, OutputError, SnapshotBroken, SnapshotError, UsageError
from mlxchat.failures import device_failures
from mlxchat.models.model import Model
from mlxchat.settings import DEFAULT_CHECKPOINT_EVERY, OnLoop, SamplingSettings
from mlxchat.store.checkpoint import Checkpoint
from mlxchat.store.fingerprint import Fingerprint
from mlxchat.store.metrics import MetricsFile
from mlxchat.store.output_file import OutputFile, Position
from mlxchat.store.snapshot import Restored
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.signals import StatusRequest, StopRequest
from mlxchat.text.thinking import ThoughtsAsText
from mlxchat.units import and_rate, count, format_bytes

# A raised temperature holds from one pause to the next.
NUDGE_EVERY = 64


@dataclass(frozen=True, slots=True)
class LongOptions:
    """The options as they were given; `until_s` is an end, in seconds since the epoch, that was
    given to a run that goes on now."""

    output: str | None = None
    checkpoint: str | None = None
    checkpoint_every: int = DEFAULT_CHECKPOINT_EVERY
    until: str | None = None
    lasting: str | None = None
    until_s: float | None = None
    max_bytes: str | None = None
    rotate: str | None = None
    on_loop: OnLoop = OnLoop.WARN
    metrics: str | None = None

    def check(self, *, json_events: bool) -> None:
        """Raise UsageError for values and pairs that make no sense, before anything takes time."""
        self.deadline()
        self.most_bytes()
        self.rotate_bytes()
        if self.checkpoint_every < 1:
            raise UsageError(
                f"--checkpoint-every must be at least 1 token, got {self.checkpoint_every}"
            )
        if self.rotate is not None and self.output_path() is None:
            raise UsageError("--rotate needs a file to write to: -o FILE, or --checkpoint")
        if json_events and (self.checkpoint is not None or self.max_bytes is not None):
            raise UsageError(
                "--json goes with neither --checkpoint nor --max-bytes: they are for text"
            )

    @property
    def is_long(self) -> bool:
        """Whether it is worth keeping the machine awake for."""
        return self.checkpoint is not None or self.deadline() is not None

    def pause_every(self) -> int | None:
        if self.on_loop is OnLoop.NUDGE:
            return NUDGE_EVERY
        return None if self.checkpoint is None else self.checkpoint_every

    def deadline(self) -> datetime | None:
        now = datetime.now().astimezone()
        if self.until is not None and self.lasting is not None:
            raise UsageError("--until and --for both say when to end: give one of them")
        if self.until is not None:
            return parse_deadline(self.until, "--until", now)
        if self.lasting is not None:
            seconds = parse_duration_s(self.lasting, "--for")
            return datetime.fromtimestamp(now.timestamp() + seconds).astimezone()
        return None if self.until_s is None else datetime.fromtimestamp(self.until_s).astimezone()

    def most_bytes(self) -> int | None:
        return None if self.max_bytes is None else parse_bytes(self.max_bytes, "--max-bytes")

    def rotate_bytes(self) -> int | None:
        return None if self.rotate is None else parse_bytes(self.rotate, "--rotate")

    def output_path(self) -> Path | None:
        """Where the text goes if not to stdout: by default to a file beside the checkpoint."""
        if self.output is not None:
            return Path(self.output).expanduser()
        return None if self.checkpoint is None else Path(self.checkpoint) / "output.txt"


class Sink(Protocol):
    """Where the text goes."""

    def write(self, text: str) -> None: ...
    def end(self) -> None: ...


class FileSink:
    """A file as a `Sink`."""

    def __init__(self, file: OutputFile) -> None:
        self.file = file

    def write(self, text: str) -> None:
        self.file.write(text)

    def end(self) -> None:
        self.file.sync()
        self.file.close()


@dataclass(slots=True)
class Loop:
    """What is known of how the text repeats itself, and what is done about it.

    `temp` is the temperature in force, which changes only where the generation pauses.
    """

    action: OnLoop
    detector: LoopDetector
    nudge: Nudge
    temp: float
    told: bool = False

    @classmethod
    def begin(
        cls, action: OnLoop, sampling: SamplingSettings, state: dict[str, Any] | None
    ) -> "Loop":
        """A new one, or the one of a `state`."""
        if state is None:
            return cls(action, LoopDetector(), Nudge(sampling.temp), sampling.temp)
        return cls(
            action,
            LoopDetector.from_state(state["detector"]),
            Nudge.from_state(sampling.temp, state["nudge"]),
            float(state["temp"]),
            bool(state["told"]),
        )

    def state(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {
            "detector": self.detector.state(),
            "nudge": self.nudge.state(),
            "temp": self.temp,
            "told": self.told,
        }

    def sampling(self, base: SamplingSettings, generated: int) -> SamplingSettings:
        """How to draw the next tokens, once so many have been generated."""
        if self.action is OnLoop.NUDGE and generated % NUDGE_EVERY == 0:
            self.temp = self.nudge.temp(self.detector.looping, generated)
        return replace(base, temp=self.temp)


@dataclass(frozen=True, slots=True)
class Begun:
    """Where a run begins, or continues.

    `loop` is a state of `Loop`, `steps` the sizes of the steps that read the first `prefilled`
    tokens, and `in_thought` whether the text so far ends within a thought.
    """

    cache: Cache
    ledger: Ledger
    sampling: SamplingSettings
    prefilled: int = 0
    steps: tuple[int, ...] = ()
    midway: Midway | None = None
    position: Position | None = None
    loop: dict[str, Any] | None = None
    in_thought: bool = False


class Watch:
    """Sees every token before it is written, and says when to stop and why.

    `ended` is the reason, where it was this that ended the generation.
    """

    def __init__(
        self,
        stop: StopRequest,
        status: StatusRequest,
        messages: Messages,
        begun: Begun,
        long: LongOptions,
    ) -> None:
        self._stop = stop
        self._status = status
        self._messages = messages
        self._cache = begun.cache
        self.loop = Loop.begin(long.on_loop, begun.sampling, begun.loop)
        deadline = long.deadline()
        self._deadline_s = math.inf if deadline is None else deadline.timestamp()
        self._most_bytes = long.most_bytes()
        self._metrics = None if long.metrics is None else MetricsFile(Path(long.metrics))
        self._tokens = 0 if begun.midway is None else begun.midway.generated
        self._tokens_before = self._tokens
        self._bytes = 0 if begun.position is None else begun.position.total_bytes
        self._started_s = time.monotonic()
        self._reading: tuple[int, int] | None = None
        self.saved = ""
        self.ended: str | None = None

    def should_stop(self) -> bool:
        """Whether a signal, the clock or a loop says so. Wall-clock time: a machine sleeps too."""
        self._tell()
        if self.ended is None and time.time() >= self._deadline_s:
            self.ended = "time"
        return self.ended is not None or self._stop.requested()

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop between two tokens, from where another run can go on."""
        return self.ended in ("time", "loop") or (self.ended is None and self._stop.requested())

    def reads(self, done: int, total: int) -> None:
        """So many prompt tokens of all have been prefilled."""
        self._reading = (done, total) if done < total else None
        self._tell()

    def fits(self, token: Token, written: str) -> bool:
        """Take the next token; False if what is to be written of it has no room any more."""
        if token.id is not None:
            self._tokens += 1
            self._reading = None
            self._watch_loop(token.id)
        self._bytes += len(written.encode("utf-8", "replace"))
        if self._most_bytes is not None and self._bytes > self._most_bytes:
            self.ended = "bytes"
            return False
        return True

    def _watch_loop(self, id_: int) -> None:
        loop = self.loop
        loop.detector.add(id_)
        if not loop.detector.looping:
            loop.told = False
            return
        if not loop.told:
            loop.told = True
            self._messages.warn(
                f"the text repeats itself at token {self._tokens:,}: "
                f"{loop.detector.share:.0%} of the latest has been said before"
            )
        if loop.action is OnLoop.STOP:
            self.ended = "loop"

    def _tell(self) -> None:
        if self._status.asked:
            self._status.asked = False
            self._messages.status(self._line())
        now_s = time.monotonic()
        if self._metrics is not None and self._metrics.due(now_s):
            error = self._metrics.write(self._figures(now_s), now_s)
            if error is not None:
                self._messages.warn(error)

    def _rate(self, now_s: float) -> float:
        return (self._tokens - self._tokens_before) / max(now_s - self._started_s, 1e-9)

    def _line(self) -> str:
        rate = self._rate(time.monotonic())
        parts = [
            f"generated {self._tokens:,} tokens{and_rate(rate)}",
            f"{format_bytes(self._bytes)} of text",
            f"KV {tokens_held(self._cache):,} tokens, {format_bytes(bytes_held(self._cache))}",
            f"memory {format_bytes(platform.process_memory_bytes())}",
            f"repetition {self.loop.detector.share:.0%}",
        ]
        if self._reading is not None:
            done, total = self._reading
            parts.insert(0, f"read {done:,} of {total:,} tokens")
        return " · ".join([*parts, *([self.saved] if self.saved else [])])

    def _figures(self, now_s: float) -> dict[str, Any]:
        widest = max(windows(self._cache), key=lambda window: window.total, default=None)
        return {
            "tokens": self._tokens,
            "tokens_per_s": round(self._rate(now_s), 3),
            "memory_bytes": platform.process_memory_bytes(),
            "mlx_bytes": mx.get_active_memory(),
            "kv_bytes": bytes_held(self._cache),
            "offset": 0 if widest is None else widest.offset,
            "total": 0 if widest is None else widest.total,
            "repetition": round(self.loop.detector.share, 4),
        }


class Checkpointer:
    """Writes checkpoints while it goes on: what the file holds and what the cache holds agree."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        long: LongOptions,
        model: Model,
        fingerprint: Fingerprint,
        begun: Begun,
        file: OutputFile,
        watch: Watch,
        written: ThoughtsAsText,
        messages: Messages,
    ) -> None:
        self._written = written
        self._checkpoint = checkpoint
        self._every = long.checkpoint_every
        self._model = model
        self._fingerprint = fingerprint
        self._begun = begun
        self._file = file
        self._watch = watch
        self._messages = messages
        # Prompt tokens in the cache, and tokens that the latest checkpoint is behind.
        self._prefilled = begun.prefilled
        self._steps = list(begun.steps)
        self._latest = begun.prefilled if begun.midway is None else begun.midway.generated

    def read(self, done: int, total: int) -> None:
        """So many prompt tokens of all were read in this run: reading alone can take a night."""
        if self._begun.midway is not None:
            return
        step = self._begun.prefilled + done - self._prefilled
        self._prefilled += step
        if step:
            self._steps.append(step)
        if done == total:
            self._record_steps()
        elif self._prefilled - self._latest >= self._every:
            self._save_reading()

    def paused(self, midway: Midway) -> None:
        """So far it has come, and everything before it is written."""
        # Fewer than before, where the prompt was long.
        if midway.generated < self._latest or midway.generated - self._latest >= self._every:
            self._save_generating(midway)

    def leave(self, midway: Midway | None, stats: Stats) -> str:
        """Write the last checkpoint, or that it has ended; say what that took.

        `midway` is where it was stopped, None where that was while reading.
        """
        if self._watch.stopped:
            self._save_last(midway)
        if not self._watch.stopped or self._watch.ended == "loop":
            self._file.sync()
            self._checkpoint.end(stats.finish_reason)
        background = self._checkpoint.state.background
        background.wait()
        self._tell_error()
        written = background.written
        if written is None:
            return ""
        return f" · checkpoint {format_bytes(written.size_bytes)} in {written.seconds:.2f} s"

    def _save_last(self, midway: Midway | None) -> None:
        try:
            with device_failures():
                if midway is not None:
                    self._save_generating(midway)
                elif self._prefilled > self._begun.prefilled:
                    self._save_reading()
        except DeviceError as error:
            self._tell(str(error))

    def _record_steps(self) -> None:
        try:
            self._checkpoint.record_steps(self._steps)
        except OutputError as error:
            self._messages.warn(str(error))

    def _save_reading(self) -> None:
        self._latest = self._prefilled
        steps = run_lengths(self._steps)
        self._save({"prefilled": self._prefilled, "steps": steps, "midway": None})
        self._watch.saved = f"checkpoint behind {count(self._prefilled, 'token')} read"

    def _save_generating(self, midway: Midway) -> None:
        self._latest = midway.generated
        self._save({"prefilled": 0, "midway": asdict(midway)})
        self._watch.saved = f"checkpoint behind {count(midway.generated, 'token')}"

    def _save(self, facts: dict[str, Any]) -> None:
        # The text first: a checkpoint may only name what is on the disk.
        position = self._file.sync()
        self._tell_error()
        facts |= {"position": position.to_json(), "loop": self._watch.loop.state()}
        facts["in_thought"] = self._written.inside
        begun = self._begun
        try:
            self._checkpoint.state.save(
                self._model, begun.cache, begun.ledger, self._fingerprint, facts
            )
        except SnapshotError as error:
            self._tell(str(error))

    def _tell_error(self) -> None:
        error = self._checkpoint.state.background.take_error()
        if error is not None:
            self._tell(str(error.strerror or error))

    def _tell(self, reason: str) -> None:
        self._messages.warn(
            f"no checkpoint could be written to {self._checkpoint.directory}: {reason}; the one "
            "before stands"
        )


def go_on(
    checkpoint: Checkpoint,
    model: Model,
    fresh: Begun,
    fingerprint: Fingerprint,
    messages: Messages,
) -> Begun:
    """Where the checkpoint's state is; or `fresh`, whose cache is empty, where there is none that
    can be used: from the beginning a run comes to the same text, only later.

    Raises SnapshotMismatch for a state that was made with something else: then it would not.
    """
    try:
        restored = checkpoint.state.restore(model, fresh.cache, fingerprint)
        return fresh if restored is None else _begun(restored, fresh.sampling)
    except SnapshotBroken as error:
        messages.warn(f"{error}: beginning again from the prompt")
        return fresh
    except OSError as error:
        raise OutputError(f"cannot read {checkpoint.directory}: {error}") from error


def pace_of(network: nn.Module, begun: Begun, checkpoint: Checkpoint | None) -> Pace:
    """How the rest of the prompt is to be read: in the steps that it was read in once, if the run
    has come so far before. Raises SnapshotBroken."""
    steps = [] if checkpoint is None else checkpoint.steps()
    ends = accumulate(steps)
    return Pace.of(
        network, [step for step, end in zip(steps, ends, strict=True) if end > begun.prefilled]
    )


def _begun(restored: Restored, sampling: SamplingSettings) -> Begun:
    facts = restored.facts
    try:
        midway = None if facts["midway"] is None else Midway(**_tuples(facts["midway"]))
        begun = Begun(
            restored.cache,
            restored.ledger,
            replace(sampling, seed=None),
            prefilled=int(facts["prefilled"]),
            steps=tuple(from_run_lengths(facts.get("steps", []))),
            midway=midway,
            position=Position.from_json(facts["position"]),
            loop=facts["loop"],
            in_thought=bool(facts.get("in_thought", False)),
        )
        Loop.begin(OnLoop.WARN, sampling, begun.loop)
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotBroken(f"the checkpoint's facts make no sense ({error})") from error
    mx.random.seed(restored.random)
    return begun


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON's lists as the tuples that they were."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
