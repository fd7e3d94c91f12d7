"""The two loops: prefill, many prompt tokens at a time, and decode, one token at a time.

They work on arrays only; `generate` deals with text and with when to end.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Required, TypedDict, Unpack

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import Cache
from mlxchat.engine.pace import Pace
from mlxchat.engine.sampling import REPETITION_CONTEXT, LogProbs, log_probs, make_draw, make_penalty
from mlxchat.progress import Progress
from mlxchat.settings import SamplingSettings
from mlxchat.text.spans import TokenIds

# MLX keeps freed buffers for reuse. Releasing them after this many tokens bounds the memory.
CLEAR_EVERY = 256

OnHeld = Callable[[TokenIds], None]
ShouldStop = Callable[[], bool]


def prefill(
    network: nn.Module,
    cache: Cache,
    ids: TokenIds,
    *,
    step_size: int,
    pace: Pace | None = None,
    on_progress: Progress | None = None,
    on_held: OnHeld | None = None,
    should_stop: ShouldStop | None = None,
) -> int:
    """Put the tokens `ids: (T,)` into the cache, `step_size` at a time; return how many went in.

    A `pace` shortens steps that take too long. Only the cache's state is evaluated, so no logits
    are computed. `on_held` is called with the ids of each step once the cache holds them,
    `on_progress` with the tokens done and the total, before the first step and after each. Stops
    between two steps if `should_stop` returns True.
    """
    done = 0
    if on_progress is not None:
        on_progress(done, len(ids))
    while done < len(ids) and not (should_stop and should_stop()):
        size = step_size if pace is None else pace.size(step_size, done)
        step = ids[done : done + size]
        begun_s = time.perf_counter()
        network(mx.array(step)[None], cache=cache)
        mx.eval([layer.state for layer in cache])
        mx.clear_cache()
        if pace is not None:
            pace.took(len(step), time.perf_counter() - begun_s)
        done += len(step)
        if on_held is not None:
            on_held(step)
        if on_progress is not None:
            on_progress(done, len(ids))
    return done


class Reading(TypedDict, total=False):
    """Options for reading a prompt: the arguments of `prefill` other than the prompt."""

    step_size: Required[int]
    pace: Pace | None
    on_progress: Progress | None
    on_held: OnHeld | None
    should_stop: ShouldStop | None


class Reader(Protocol):
    """Puts a prompt's ids into the cache like `prefill`, but may reuse some from elsewhere."""

    reused_tokens: int

    def __call__(
        self, network: nn.Module, cache: Cache, ids: TokenIds, **how: Unpack[Reading]
    ) -> int: ...


@dataclass(frozen=True, slots=True)
class Decoded:
    """One decoded token: its id and, if requested, log-probabilities (natural log)."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def decode(
    network: nn.Module,
    cache: Cache,
    ids: TokenIds,
    *,
    sampling: SamplingSettings,
    first_index: int = 0,
    max_tokens: int = -1,
    logprobs: int | None = None,
    on_held: OnHeld | None = None,
    should_stop: ShouldStop | None = None,
) -> Iterator[Decoded]:
    """Yield the tokens that follow `ids: (T,)`, of which only the last is not yet in the cache.

    The next token is computed while the caller handles the current one, so the cache already holds
    every token yielded except the very last: the last of `max_tokens`, or the last after
    `should_stop` returned True. The cache is then not ahead of the output, and another `decode`
    continues as if this one had not ended. `on_held` is called with each id that the cache holds,
    before it is yielded. `sampling` needs a seed unless it is greedy; the random numbers
    of each token follow from the seed and its index, which starts at `first_index`.
    """

    def run(token: mx.array) -> mx.array:
        return network(token[None], cache=cache)[:, -1, :]

    logits = run(mx.array(ids[-1:]))
    if on_held is not None:
        on_held(ids[-1:])
    draw = make_draw(sampling, vocabulary_size=logits.shape[-1])
    penalize = make_penalty(sampling)
    # One token short of the context: each step's input token completes it.
    latest = mx.array(ids[-REPETITION_CONTEXT:])

    def finish_step(logits: mx.array, count: int) -> tuple[mx.array, LogProbs | None]:
        if penalize is not None:
            logits = penalize(latest, logits)
        token = draw(logits, first_index + count)
        scores = None if logprobs is None else log_probs(logits, token, logprobs)
        mx.async_eval(token, *(scores.arrays() if scores is not None else ()))
        return token, scores

    token, scores = finish_step(logits, 0)
    count = 0
    while True:
        count += 1
        following: tuple[mx.array, LogProbs | None] | None = None
        if count != max_tokens and not (should_stop and should_stop()):
            if penalize is not None:
                latest = mx.concatenate([latest, token])[-REPETITION_CONTEXT:]
            following = finish_step(run(token), count)
        decoded = _decoded(token, scores)
        if following is not None and on_held is not None:
            on_held(np.array([decoded.id], ids.dtype))
        yield decoded
        if following is None:
            return
        token, scores = following
        if count % CLEAR_EVERY == 0:
            mx.clear_cache()


def _decoded(token: mx.array, scores: LogProbs | None) -> Decoded:
    # MLX types every scalar as possibly complex.
    id_: Any = token.item()
    if scores is None:
        return Decoded(id_)
    logprob: Any = scores.drawn.item()
    ids: Any = scores.top_ids.tolist()
    values: Any = scores.top.tolist()
    return Decoded(id_, logprob, tuple(zip(ids[0], values[0], strict=True)))
