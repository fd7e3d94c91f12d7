"""The two loops: prefill, many prompt tokens at a time, and decode, one token at a time.

`prefill` and `decode` know arrays only; `Generation` puts them together with text, stop conditions
and timing. Nothing here prints, and nothing knows where the prompt came from.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import bytes_held, learned_positions, tokens_evicted, tokens_held
from mlxchat.errors import CacheError
from mlxchat.models.load import Model
from mlxchat.platform import wired_limit
from mlxchat.sampling import REPETITION_CONTEXT, LogProbs, log_probs, make_draw, make_penalty
from mlxchat.settings import DEFAULT_PREFILL_STEP_SIZE, GenerationSettings, SamplingSettings
from mlxchat.stop import StopTexts

# MLX keeps freed buffers for reuse; giving them back this often (tokens) bounds what it hoards.
CLEAR_EVERY = 256

Cache = Sequence[Any]
Progress = Callable[[int, int], None]
OnHeld = Callable[[np.ndarray], None]
ShouldStop = Callable[[], bool]


def never() -> bool:
    return False


def nobody(_: np.ndarray) -> None:
    return


def prefill(
    network: nn.Module,
    cache: Cache,
    ids: np.ndarray,
    *,
    step_size: int,
    on_progress: Progress | None = None,
    on_held: OnHeld = nobody,
    should_stop: ShouldStop = never,
) -> int:
    """Put the tokens `ids: (T,)` into the cache, `step_size` at a time; return how many went in.

    Only the cache's state is ever evaluated, so no logits are computed. `on_held` is given the ids
    of each step once the cache holds them. Stops early, between two steps, where `should_stop`
    says so.
    """
    done = 0
    while done < len(ids) and not should_stop():
        step = ids[done : done + step_size]
        network(mx.array(step)[None], cache=cache)
        mx.eval([layer.state for layer in cache])
        mx.clear_cache()
        done += len(step)
        on_held(step)
        if on_progress is not None:
            on_progress(done, len(ids))
    return done


@dataclass(frozen=True, slots=True)
class Decoded:
    """One decoded token: its id, and log-probabilities (natural log) where they were asked for."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def decode(
    network: nn.Module,
    cache: Cache,
    ids: np.ndarray,
    *,
    sampling: SamplingSettings,
    max_tokens: int = -1,
    logprobs: int | None = None,
    on_held: OnHeld = nobody,
) -> Iterator[Decoded]:
    """Yield tokens that follow `ids: (T,)`, whose last one alone is not in the cache yet.

    While the caller handles a token, the next one is already being computed: when a token is
    yielded the cache holds it too, except for the last of `max_tokens`. `on_held` is given each
    id that the cache holds, before it is yielded.
    """

    def run(token: mx.array) -> mx.array:
        return network(token[None], cache=cache)[:, -1, :]

    logits = run(mx.array(ids[-1:]))
    on_held(ids[-1:])
    draw = make_draw(sampling, vocabulary_size=logits.shape[-1])
    penalize = make_penalty(sampling)
    # One short of the whole: the token that each step is given completes it.
    latest = mx.array(ids[-REPETITION_CONTEXT:])

    def finish_step(logits: mx.array) -> tuple[mx.array, LogProbs | None]:
        if penalize is not None:
            logits = penalize(latest, logits)
        token = draw(logits)
        told = None if logprobs is None else log_probs(logits, token, logprobs)
        mx.async_eval(token, *(told.arrays() if told is not None else ()))
        return token, told

    token, told = finish_step(logits)
    count = 0
    while True:
        count += 1
        following: tuple[mx.array, LogProbs | None] | None = None
        if count != max_tokens:
            if penalize is not None:
                latest = mx.concatenate([latest, token])[-REPETITION_CONTEXT:]
            following = finish_step(run(token))
        decoded = _decoded(token, told)
        if following is not None:
            on_held(np.array([decoded.id], ids.dtype))
        yield decoded
        if following is None:
            return
        token, told = following
        if count % CLEAR_EVERY == 0:
            mx.clear_cache()


def _decoded(token: mx.array, told: LogProbs | None) -> Decoded:
    # MLX declares every scalar as possibly complex.
    id_: Any = token.item()
    if told is None:
        return Decoded(id_)
    logprob: Any = told.drawn.item()
    ids: Any = told.top_ids.tolist()
    values: Any = told.top.tolist()
    return Decoded(id_, logprob, tuple(zip(ids[0], values[0], strict=True)))


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token and the text that it completed: empty within a character, and where the
    text may be the beginning of a stop text. The end of the text can come with no token (id None).
    """

    text: str
    id: int | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Stats:
    """What a generation took. Times begin when it does: loading the model is not in them."""

    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    evicted_tokens: int
    ttft_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    kv_tokens: int
    kv_bytes: int
    peak_memory_bytes: int


class Generation:
    """Iterate over it for the tokens that follow `ids: (T,)`; afterwards `stats` tells what it took
    and why it ended. The first `cached_tokens` of `ids` are in the cache already.

    A model whose positions come to an end (GPT-2) stops there, for the reason "length"; where the
    prompt already goes beyond them, CacheError is raised. `should_stop` is asked between prefill
    steps and between tokens; where it answers yes, the generation ends with the reason
    "interrupted" and what it has.
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
        cached_tokens: int = 0,
        on_prefill: Progress | None = None,
        on_held: OnHeld = nobody,
        should_stop: ShouldStop = never,
    ) -> None:
        assert 0 <= cached_tokens < len(ids)
        self._model = model
        self._ids = ids
        self._cache = cache
        self._sampling = sampling or SamplingSettings()
        self._settings = settings or GenerationSettings()
        self._max_tokens = _within_positions(
            model, cache, len(ids) - cached_tokens, self._settings.max_tokens
        )
        self._prefill_step_size = prefill_step_size
        self._cached_tokens = cached_tokens
        self._on_prefill = on_prefill
        self._on_held = on_held
        self._should_stop = should_stop
        self._generated = 0
        self._started_s = self._first_token_s = self._ended_s = 0.0
        self._finish_reason = "interrupted"

    def __iter__(self) -> Iterator[Token]:
        if self._sampling.seed is not None:
            mx.random.seed(self._sampling.seed)
        mx.reset_peak_memory()
        with wired_limit():
            self._started_s = time.perf_counter()
            # All but the last token: what that one's logits say is where decoding begins.
            rest = self._ids[self._cached_tokens : -1]
            done = prefill(
                self._model.network,
                self._cache,
                rest,
                step_size=self._prefill_step_size,
                on_progress=self._on_prefill,
                on_held=self._on_held,
                should_stop=self._should_stop,
            )
            try:
                if done == len(rest):
                    yield from self._decode_text()
            finally:
                self._ended_s = time.perf_counter()

    def _decode_text(self) -> Iterator[Token]:
        decoder = self._model.tokenizer.stream_decoder()
        stop = StopTexts(self._settings.stop)
        for token in self._decode_until_end():
            text = stop.add(decoder.add(token.id))
            yield Token(text, token.id, token.logprob, token.top)
            if stop.found:
                self._finish_reason = "stop_text"
                return
        rest = stop.add(decoder.finish())
        if stop.found:
            self._finish_reason = "stop_text"
        rest += stop.finish()
        if rest:
            yield Token(rest, None)

    def _decode_until_end(self) -> Iterator[Decoded]:
        eos_ids = frozenset() if self._settings.ignore_eos else self._model.tokenizer.eos_ids
        tokens = decode(
            self._model.network,
            self._cache,
            self._ids,
            sampling=self._sampling,
            max_tokens=self._max_tokens,
            logprobs=self._settings.logprobs,
            on_held=self._on_held,
        )
        for token in tokens:
            if self._generated == 0:
                self._first_token_s = time.perf_counter()
            if token.id in eos_ids:
                self._finish_reason = "stop"
                return
            self._generated += 1
            yield token
            if self._should_stop():
                return
        self._finish_reason = "length"

    @property
    def stats(self) -> Stats:
        """What it took, up to now or to its end."""
        ttft_s = max(self._first_token_s - self._started_s, 0.0)
        decode_s = self._ended_s - self._first_token_s if self._first_token_s else 0.0
        return Stats(
            finish_reason=self._finish_reason,
            prompt_tokens=len(self._ids),
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated,
            evicted_tokens=tokens_evicted(self._cache),
            ttft_s=ttft_s,
            prefill_tokens_per_s=_rate(len(self._ids) - self._cached_tokens, ttft_s),
            # The first token's time belongs to the prefill.
            decode_tokens_per_s=_rate(self._generated - 1, decode_s),
            kv_tokens=tokens_held(self._cache),
            kv_bytes=bytes_held(self._cache),
            peak_memory_bytes=mx.get_peak_memory(),
        )


def _within_positions(model: Model, cache: Cache, prompt_tokens: int, max_tokens: int) -> int:
    """`max_tokens`, or how many the model has positions for if that is less."""
    positions = learned_positions(model.network)
    if positions is None:
        return max_tokens
    room = positions - tokens_held(cache) - prompt_tokens
    if room <= 0:
        raise CacheError(
            f"the prompt is {prompt_tokens:,} tokens and this model has learned {positions:,} "
            "positions, with no way past them: shorten the prompt or choose another model"
        )
    return room if max_tokens < 0 else min(max_tokens, room)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0
