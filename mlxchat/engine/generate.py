"""Generate from a prompt: the two loops combined with text, stop conditions and timing.

Prints nothing, and is independent of the prompt's source.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mlxchat.cache import Cache, bytes_held, tokens_evicted, tokens_held
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.decode import decode
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.draw import Decoded
from mlxchat.engine.pace import Pace
from mlxchat.engine.prefill import OnHeld, PromptReader, ShouldStop, prefill
from mlxchat.engine.reply import Reply, ResumePoint, Token
from mlxchat.engine.sampling import penalty_context
from mlxchat.errors import CacheError, ConstraintError
from mlxchat.failures import device_failures
from mlxchat.models.model import Model
from mlxchat.platform import wired_limit
from mlxchat.progress import Progress
from mlxchat.settings import (
    DEFAULT_PREFILL_STEP_SIZE,
    GenerationSettings,
    SamplingSettings,
    with_seed,
)
from mlxchat.text.reply_reader import Reader


@dataclass(frozen=True, slots=True)
class Stats:
    """The cost of a generation. Times exclude loading the model.

    `prefilled_tokens` are the prompt tokens computed: not cached ones, nor those left unread if the
    generation was stopped. Rates and times of stages that did not run are 0.
    """

    finish_reason: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    evicted_tokens: int = 0
    ttft_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    kv_tokens: int = 0
    kv_bytes: int = 0
    peak_memory_bytes: int = 0


OnPause = Callable[[ResumePoint], None]


class Generation:
    """Iterate to get the tokens that follow `ids: (T,)`; then `stats` has the cost and the reason
    for the end.

    The first `cached_tokens` of `ids` are already in the cache, and the last `generated` of them
    count towards `max_tokens`. `reader`, if given, prefills the rest.

    `should_stop` is called between prefill steps and between tokens; once it returns True, the
    generation ends with the reason "interrupted". A model that runs out of positions (GPT-2) ends
    with "length", or raises CacheError if the prompt alone is too long.

    `reply` separates thoughts from the answer; without it there are no thoughts.

    `constrained` rules out tokens, and ends the generation once nothing may follow. `is_complete`
    then shows whether the answer is whole.

    A `drafter` speeds up text that repeats its history, which the prompt's uncached part and the
    generated tokens are added to.

    Every `pause_every` tokens, `on_pause` is called with the current ResumePoint. At that moment
    nothing is being computed and everything yielded has been handled. `resume` continues from such
    a point, or from `resume_point` after an interruption between two tokens.
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
        reader: PromptReader | None = None,
        reply: Reader | None = None,
        drafter: Drafter | None = None,
        constrained: Constrained | None = None,
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
        self._sampling = with_seed(sampling or SamplingSettings())
        self._settings = settings or GenerationSettings()
        self._reply = Reply(
            ids,
            reply or model.tokenizer.reader(),
            self._settings,
            eos_ids=model.tokenizer.eos_ids,
            max_tokens=max_tokens_within(
                model, cache, len(ids) - cached_tokens, self._settings.max_tokens, generated
            ),
            generated=generated,
            context=penalty_context(self._sampling),
            constrained=constrained,
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
        self._drafter = drafter
        self._drafted_before = (0, 0) if drafter is None else drafter.counts
        self._constrained = constrained
        self._generated_before = generated
        self._interrupted = False
        self.resume_point: ResumePoint | None = None
        self._read = 0
        self._started_s = self._first_token_s = self._ended_s = 0.0

    @classmethod
    def resume(cls, model: Model, point: ResumePoint, cache: Cache, **options: Any) -> "Generation":
        """Continue from `point`, given the cache of that moment.

        The sampling in `options` needs the seed of before. `max_tokens` includes earlier tokens.
        """
        ids = np.array(point.latest, np.int32)
        generation = cls(
            model, ids, cache, cached_tokens=len(ids) - 1, generated=point.generated, **options
        )
        generation._reply.restore(point)
        return generation

    def __iter__(self) -> Iterator[Token]:
        if self._drafter is not None:
            self._drafter.history.extend(self._ids[self._cached_tokens :])
        mx.reset_peak_memory()
        with device_failures(), wired_limit():
            self._started_s = time.perf_counter()
            # All but the last token, whose logits begin the decoding.
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
        while self._reply.finish_reason is None:
            try:
                for token in self._decode_stretch():
                    if not self._first_token_s:
                        self._first_token_s = time.perf_counter()
                    yield from self._reply.add(token)
                    if self._reply.finish_reason is not None:
                        break
            except ConstraintError as error:
                self._reply.fail(error)
            if self._interrupted:
                break
            if self._on_pause is not None and self._reply.finish_reason is None:
                self._on_pause(self._reply.here())
        if self._reply.finish_reason != "stop_text":
            # Before finishing: that text belongs to an ending, not to a continuation.
            self.resume_point = self._reply.here()
        yield from self._reply.finish()

    def _decode_stretch(self) -> Iterator[Decoded]:
        """Decode up to the next pause or the end."""
        generated, max_tokens = self._reply.generated, self._reply.max_tokens
        ends = [max_tokens - generated] if max_tokens >= 0 else []
        if self._pause_every is not None:
            ends.append(self._pause_every - generated % self._pause_every)
        return decode(
            self._model.network,
            self._cache,
            np.array(self._reply.here().latest, self._ids.dtype),
            sampling=self._sampling,
            first_index=generated,
            max_tokens=min(ends, default=-1),
            logprobs=self._settings.logprobs,
            on_held=self._on_held,
            should_stop=self._asked_to_stop,
            drafter=self._drafter,
            constrained=self._constrained,
            eos_ids=() if self._settings.ignore_eos else self._model.tokenizer.eos_ids,
            min_tokens=self._settings.min_tokens,
        )

    @property
    def is_complete(self) -> bool | None:
        """Whether the answer is one that the constraint describes; None without a constraint."""
        return self._reply.is_complete

    @property
    def problem(self) -> str | None:
        """Why an answer that was not cut off is none that the constraint describes."""
        return self._reply.problem

    def _asked_to_stop(self) -> bool:
        self._interrupted = self._should_stop is not None and self._should_stop()
        return self._interrupted

    @property
    def stats(self) -> Stats:
        """The cost so far, or up to the end."""
        reused_tokens = 0 if self._reader is None else self._reader.reused_tokens
        ended_s = self._ended_s or time.perf_counter()
        # The prompt's last token is computed together with the first generated one.
        began_text = bool(self._first_token_s)
        ttft_s = self._first_token_s - self._started_s if began_text else 0.0
        prefill_s = ttft_s if began_text else ended_s - self._started_s
        prefilled_tokens = self._read + began_text - reused_tokens
        decode_s = ended_s - self._first_token_s if began_text else 0.0
        drafted, accepted = (0, 0) if self._drafter is None else self._drafter.counts
        return Stats(
            finish_reason=self._reply.finish_reason or "interrupted",
            prompt_tokens=len(self._ids),
            cached_tokens=self._cached_tokens + reused_tokens,
            prefilled_tokens=prefilled_tokens,
            generated_tokens=self._reply.generated,
            drafted_tokens=drafted - self._drafted_before[0],
            accepted_tokens=accepted - self._drafted_before[1],
            evicted_tokens=tokens_evicted(self._cache),
            ttft_s=ttft_s,
            prefill_tokens_per_s=_rate(prefilled_tokens, prefill_s),
            # The first token's time counts as prefill.
            decode_tokens_per_s=_rate(self._reply.generated - self._generated_before - 1, decode_s),
            kv_tokens=tokens_held(self._cache),
            kv_bytes=bytes_held(self._cache),
            peak_memory_bytes=mx.get_peak_memory(),
        )


def nothing_done(cache: Cache) -> Stats:
    """The stats of a generation that was stopped before it began."""
    return Stats(
        "interrupted",
        evicted_tokens=tokens_evicted(cache),
        kv_tokens=tokens_held(cache),
        kv_bytes=bytes_held(cache),
        peak_memory_bytes=mx.get_peak_memory(),
    )


def max_tokens_within(
    model: Model, cache: Cache, prompt_tokens: int, max_tokens: int, generated: int
) -> int:
    """`max_tokens`, limited to the positions that the model has left after what the cache holds and
    `prompt_tokens` more; `generated` of these count already. Raises CacheError if none are left."""
    positions = model.positions
    if positions is None:
        return max_tokens
    room = positions - tokens_held(cache) - prompt_tokens
    if room <= 0:
        raise CacheError(
            f"the prompt is {prompt_tokens:,} tokens, and this model has {positions:,} positions: "
            "shorten the prompt or use another model"
        )
    limit = room + generated
    return limit if max_tokens < 0 else min(max_tokens, limit)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0
