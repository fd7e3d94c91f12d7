"""Generating from a prompt: the loops, put together with text, stop conditions and timing.

Nothing here prints, and nothing knows where the prompt came from.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mlxchat.cache import Cache, bytes_held, learned_positions, tokens_evicted, tokens_held
from mlxchat.engine.loops import Decoded, OnHeld, Reader, ShouldStop, decode, prefill
from mlxchat.engine.pace import Pace
from mlxchat.engine.sampling import REPETITION_CONTEXT
from mlxchat.errors import CacheError
from mlxchat.failures import device_failures
from mlxchat.models.model import Model
from mlxchat.platform import wired_limit
from mlxchat.progress import Progress
from mlxchat.settings import DEFAULT_PREFILL_STEP_SIZE, GenerationSettings, SamplingSettings
from mlxchat.text.reply_reader import Reader as ReplyReader
from mlxchat.text.stop import StopTexts
from mlxchat.text.thinking import Piece

# Tokens that the next step may look at: the one that it is given completes the penalty's context.
LATEST = REPETITION_CONTEXT + 1


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token and the text that it completed: empty within a character, for a marker of
    the reply's format, and if the text may be the beginning of a stop text. Text can come with no
    token (id None): at the end, and if one token completed a thought and began the answer.
    `another` is whether it is a marker with which another thought begins.
    """

    text: str
    id: int | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    thought: bool = False
    another: bool = False


@dataclass(frozen=True, slots=True)
class Stats:
    """What a generation took. Times begin when it does: loading the model is not in them.

    `prefilled_tokens` are those of the prompt that were computed, fewer than are left of it if the
    generation was stopped while it read. A rate or time of something that never happened is 0.
    """

    finish_reason: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    evicted_tokens: int = 0
    ttft_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    kv_tokens: int = 0
    kv_bytes: int = 0
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a generation can be resumed: between two tokens. Its cache and the random state are
    not in here.

    `latest` are the last ids, as many as the next step looks at: the very last one alone is not in
    the cache. `shown` and `pending` are the text decoder's, `held` may begin a stop text, `reading`
    is the reply reader's state.
    """

    latest: tuple[int, ...]
    generated: int
    shown: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    held: str = ""
    reading: tuple[str, ...] = ()


OnPause = Callable[[ResumePoint], SamplingSettings]


class Generation:
    """Iterate over it for the tokens that follow `ids: (T,)`; afterwards `stats` has what it took
    and why it ended. The first `cached_tokens` of `ids` are in the cache already, and `generated`
    of the tokens that `max_tokens` allows are the last of `ids`. The others are put in by `reader`,
    if there is one.

    A model whose positions come to an end (GPT-2) stops there, for the reason "length"; if the
    prompt already goes beyond them, CacheError is raised. `should_stop` is asked between prefill
    steps and between tokens; if it answers yes, the generation ends with the reason
    "interrupted" and what it has.

    `reply` reads what is generated; without it nothing is a thought.

    Every `pause_every` tokens `on_pause` is given where it stands, and returns how to draw the
    next ones: nothing is being computed then, and all that was yielded has been handled. `resume`
    continues from there, or from `resume_point` after an interruption between two tokens.
    """

    def __init__(
        self,
        model: Model,
        ids: np.ndarray,
        cache: Cache,
        *,
        sampling: SamplingSettings | None = None,
        settings: GenerationSettings | None = None,
        prefill_step_size: int = DEFAULT_PREFILL_STEP_SIZE,
        pace: Pace | None = None,
        cached_tokens: int = 0,
        reader: Reader | None = None,
        reply: ReplyReader | None = None,
        generated: int = 0,
        on_prefill: Progress | None = None,
        on_held: OnHeld | None = None,
        should_stop: ShouldStop | None = None,
        pause_every: int | None = None,
        on_pause: OnPause | None = None,
    ) -> None:
        assert 0 <= cached_tokens < len(ids)
        self._model = model
        self._ids = ids
        self._cache = cache
        self._sampling = sampling or SamplingSettings()
        self._settings = settings or GenerationSettings()
        self._max_tokens = _within_positions(
            model, cache, len(ids) - cached_tokens, self._settings.max_tokens, generated
        )
        self._prefill_step_size = prefill_step_size
        self._pace = pace
        self._cached_tokens = cached_tokens
        self._reader = reader
        self._on_prefill = on_prefill
        self._on_held = on_held
        self._should_stop = should_stop
        self._pause_every = pause_every
        self._on_pause = on_pause
        self._reply = reply or model.tokenizer.reader()
        self._in_thought = self._reply.is_thought
        self._stop = StopTexts(self._settings.stop)
        self._latest = deque(ids[-LATEST:].tolist(), maxlen=LATEST)
        self._generated = self._generated_before = generated
        self._interrupted = False
        self.resume_point: ResumePoint | None = None
        self._read = 0
        self._started_s = self._first_token_s = self._ended_s = 0.0
        self._finish_reason = "interrupted"

    @classmethod
    def resume(cls, model: Model, point: ResumePoint, cache: Cache, **options: Any) -> "Generation":
        """Continue from `point`, with the cache and the random state as they were then.

        The sampling in `options` must have no seed. `max_tokens` counts earlier tokens as well.
        """
        ids = np.array(point.latest, np.int32)
        generation = cls(
            model, ids, cache, cached_tokens=len(ids) - 1, generated=point.generated, **options
        )
        generation._reply.restore(point.reading, point.shown, point.pending)
        generation._in_thought = generation._reply.is_thought
        generation._stop.restore(point.held)
        return generation

    def _here(self) -> ResumePoint:
        reading, shown, pending = self._reply.state
        held = self._stop.held
        return ResumePoint(tuple(self._latest), self._generated, shown, pending, held, reading)

    def __iter__(self) -> Iterator[Token]:
        if self._sampling.seed is not None:
            mx.random.seed(self._sampling.seed)
        mx.reset_peak_memory()
        with device_failures(), wired_limit():
            self._started_s = time.perf_counter()
            # All but the last token: what that one's logits say is where decoding begins.
            rest = self._ids[self._cached_tokens : -1]
            read = prefill if self._reader is None else self._reader
            try:
                done = read(
                    self._model.network,
                    self._cache,
                    rest,
                    step_size=self._prefill_step_size,
                    pace=self._pace,
                    on_progress=self._on_prefill,
                    on_held=self._hold_prompt,
                    should_stop=self._should_stop,
                )
                if done == len(rest):
                    yield from self._decode_text()
            finally:
                self._ended_s = time.perf_counter()

    def _hold_prompt(self, step: np.ndarray) -> None:
        self._read += len(step)
        if self._on_held is not None:
            self._on_held(step)

    def _decode_text(self) -> Iterator[Token]:
        for token in self._decode_until_end():
            begun, thoughts = self._reply.is_thought, self._reply.thoughts
            pieces = self._until_stop_text(self._reply.add(token.id))
            (thought, text), *others = pieces or [(begun or self._reply.is_thought, "")]
            another = self._reply.thoughts > max(thoughts, 1)
            yield Token(text, token.id, token.logprob, token.top, thought, another)
            yield from (Token(text, None, thought=is_) for is_, text in others)
            if self._stop.found:
                self._finish_reason = "stop_text"
                return
        # Now, because what follows belongs to an end, and not to what would continue it.
        self.resume_point = self._here()
        rest = self._until_stop_text(self._reply.finish())
        if self._stop.found:
            self._finish_reason = "stop_text"
        rest.append((self._in_thought, self._stop.finish()))
        yield from (Token(text, None, thought=is_) for is_, text in rest if text)

    def _until_stop_text(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces up to a stop text, which is within a thought or an answer, not across both."""
        shown: list[Piece] = []
        for thought, text in pieces:
            if thought is not self._in_thought:
                shown.append((self._in_thought, self._stop.finish()))
                self._in_thought = thought
            shown.append((thought, self._stop.add(text)))
            if self._stop.found:
                break
        return [piece for piece in shown if piece[1]]

    def _decode_until_end(self) -> Iterator[Decoded]:
        may_end = not self._settings.ignore_eos
        eos_ids = self._model.tokenizer.eos_ids if may_end else frozenset()
        sampling = self._sampling
        while self._max_tokens < 0 or self._generated < self._max_tokens:
            for token in self._decode_stretch(sampling):
                if not self._first_token_s:
                    self._first_token_s = time.perf_counter()
                if token.id in eos_ids or (may_end and self._reply.ends(token.id)):
                    self._finish_reason = "stop"
                    return
                self._generated += 1
                self._latest.append(token.id)
                yield token
            if self._interrupted:
                return
            if self._on_pause is not None and self._generated != self._max_tokens:
                sampling = self._on_pause(self._here())
        self._finish_reason = "length"

    def _decode_stretch(self, sampling: SamplingSettings) -> Iterator[Decoded]:
        """Decode up to the next pause, or the end."""
        ends = [self._max_tokens - self._generated] if self._max_tokens >= 0 else []
        if self._pause_every is not None:
            ends.append(self._pause_every - self._generated % self._pause_every)
        return decode(
            self._model.network,
            self._cache,
            np.array(self._latest, self._ids.dtype),
            sampling=sampling,
            max_tokens=min(ends, default=-1),
            logprobs=self._settings.logprobs,
            on_held=self._on_held,
            should_stop=self._asked_to_stop,
        )

    def _asked_to_stop(self) -> bool:
        self._interrupted = self._should_stop is not None and self._should_stop()
        return self._interrupted

    @property
    def stats(self) -> Stats:
        """What it took, up to now or to its end."""
        reused_tokens = 0 if self._reader is None else self._reader.reused_tokens
        ended_s = self._ended_s or time.perf_counter()
        # The last token of the prompt is computed with the first one of the text.
        began_text = bool(self._first_token_s)
        ttft_s = self._first_token_s - self._started_s if began_text else 0.0
        prefill_s = ttft_s if began_text else ended_s - self._started_s
        prefilled_tokens = self._read + began_text - reused_tokens
        decode_s = ended_s - self._first_token_s if began_text else 0.0
        return Stats(
            finish_reason=self._finish_reason,
            prompt_tokens=len(self._ids),
            cached_tokens=self._cached_tokens + reused_tokens,
            prefilled_tokens=prefilled_tokens,
            generated_tokens=self._generated,
            evicted_tokens=tokens_evicted(self._cache),
            ttft_s=ttft_s,
            prefill_tokens_per_s=_rate(prefilled_tokens, prefill_s),
            # The first token's time belongs to the prefill.
            decode_tokens_per_s=_rate(self._generated - self._generated_before - 1, decode_s),
            kv_tokens=tokens_held(self._cache),
            kv_bytes=bytes_held(self._cache),
            peak_memory_bytes=mx.get_peak_memory(),
        )


def nothing_done(cache: Cache) -> Stats:
    """Those of a generation that was stopped before it began."""
    return Stats(
        "interrupted",
        evicted_tokens=tokens_evicted(cache),
        kv_tokens=tokens_held(cache),
        kv_bytes=bytes_held(cache),
        peak_memory_bytes=mx.get_peak_memory(),
    )


def _within_positions(
    model: Model, cache: Cache, prompt_tokens: int, max_tokens: int, generated: int
) -> int:
    """`max_tokens`, or how many the model has positions for if that is less."""
    positions = learned_positions(model.shard)
    if positions is None:
        return max_tokens
    room = positions - tokens_held(cache) - prompt_tokens
    if room <= 0:
        raise CacheError(
            f"the prompt is {prompt_tokens:,} tokens and this model has learned {positions:,} "
            "positions, with no way past them: shorten the prompt or choose another model"
        )
    most = room + generated
    return most if max_tokens < 0 else min(max_tokens, most)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0
