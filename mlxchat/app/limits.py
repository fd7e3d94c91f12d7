"""The limits and the progress of a run."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlxchat.cache import Cache
from mlxchat.chat.ledger import Ledger
from mlxchat.engine.prefill import ShouldStop
from mlxchat.engine.repetition import LoopDetector
from mlxchat.engine.reply import ResumePoint, Token
from mlxchat.request import Overnight
from mlxchat.settings import OnLoop, SamplingSettings
from mlxchat.store.output_file import Position

# With it, no text of the measurements looped: scripts/bench/loops.py.
USUAL_MULTIPLIER = 0.4


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a run has come, besides its cache and ledger. While the prompt is read, `prefilled`
    of its tokens are in the cache, and there is no `resume_point`. `loop` is a
    state of its LoopDetector; `in_thought` is whether the text so far ends within a thought."""

    prefilled: int = 0
    resume_point: ResumePoint | None = None
    position: Position | None = None
    loop: dict[str, Any] | None = None
    in_thought: bool = False


@dataclass(frozen=True, slots=True)
class RunState:
    """The state in which a run begins or continues."""

    cache: Cache
    ledger: Ledger
    sampling: SamplingSettings
    at: Reached = Reached()


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The latest checkpoint, after `tokens` tokens of the prompt or of the output."""

    tokens: int
    reading: bool


class Limits:
    """Sees every token before it is written, and decides when to stop.

    `ended` is the reason if it ended the generation: "time", "bytes" or "loop". `reading` is how
    many prompt tokens have been read, and of how many, while they are.
    """

    def __init__(
        self,
        begun: RunState,
        overnight: Overnight,
        on_loop: OnLoop,
        should_stop: ShouldStop | None,
        warn: Callable[[str], None],
    ) -> None:
        self._should_stop = should_stop
        self._warn = warn
        self.cache = begun.cache
        self.loop = loop_of(begun.at)
        self._on_loop = on_loop
        self._penalized = begun.sampling.dry_multiplier > 0
        deadline_s = overnight.deadline_s(time.time())
        self._deadline_s = math.inf if deadline_s is None else deadline_s
        self._max_bytes = overnight.max_bytes
        self.tokens = 0 if begun.at.resume_point is None else begun.at.resume_point.generated
        self._tokens_before = self.tokens
        self.text_bytes = 0 if begun.at.position is None else begun.at.position.bytes
        self._started_s = time.monotonic()
        self.reading: tuple[int, int] | None = None
        self.saved: Checkpointed | None = None
        self.ended: str | None = None

    def should_stop(self) -> bool:
        """Whether the caller, the wall clock or a loop ends the run."""
        asked = self._is_asked_to_stop()
        # Wall-clock time, because a machine may sleep.
        if self.ended is None and time.time() >= self._deadline_s:
            self.ended = "time"
        return self.ended is not None or asked

    @property
    def stopped(self) -> bool:
        """Whether it was stopped between two tokens, so that another run can continue."""
        return self.ended in ("time", "loop") or (self.ended is None and self._is_asked_to_stop())

    def _is_asked_to_stop(self) -> bool:
        return self._should_stop is not None and self._should_stop()

    def reads(self, done: int, total: int) -> None:
        """`done` of `total` prompt tokens have been prefilled."""
        self.reading = (done, total) if done < total else None

    def take(self, token: Token, written: str) -> bool:
        """Take the next token; return False if its text would exceed the limit."""
        if token.id is not None:
            self.tokens += 1
            self.reading = None
            self._watch_loop(token.id)
        size_bytes = len(written.encode("utf-8", "replace"))
        if not self.has_room(size_bytes):
            self.ended = "bytes"
            return False
        self.text_bytes += size_bytes
        return True

    def has_room(self, size_bytes: int) -> bool:
        """Whether `size_bytes` more stay within the maximum."""
        return self._max_bytes is None or self.text_bytes + size_bytes <= self._max_bytes

    @property
    def tokens_per_s(self) -> float:
        seconds = time.monotonic() - self._started_s
        return (self.tokens - self._tokens_before) / max(seconds, 1e-9)

    def _watch_loop(self, id_: int) -> None:
        was_looping = self.loop.looping
        self.loop.add(id_)
        stops = self.loop.looping and self._on_loop is OnLoop.STOP
        if self.loop.looping and not was_looping:
            share = f"{self.loop.share:.0%} of the latest tokens repeat earlier ones"
            text = f"the text repeats itself at token {self.tokens:,}: {share}"
            if stops:
                text += "; stopped (--on-loop warn continues)"
            if not self._penalized:
                text += f"; --dry-multiplier {USUAL_MULTIPLIER} prevents that from the start"
            self._warn(text)
        if stops:
            self.ended = "loop"


def loop_of(at: Reached) -> LoopDetector:
    """A new detector, or the one saved. Raises KeyError or TypeError if that is invalid."""
    return LoopDetector() if at.loop is None else LoopDetector.from_state(at.loop)
