"""Prefill: many prompt tokens at a time. `decode` is the other loop.

On a CPU with several cores, a step is computed in pieces, two at a time: MLX's CPU backend computes
most of attention on one core, and a piece needs only the keys and values of the previous one, layer
by layer. Pieces also spend less time and memory on keys that the mask hides.
"""

import time
from collections.abc import Callable
from typing import Protocol, Required, TypedDict, Unpack

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.cache import Cache
from mlxchat.cache.layers import windows
from mlxchat.engine.pace import Pace
from mlxchat.text.spans import TokenIds
from mlxchat.units import Progress

PIECE = 128  # tokens

# Shorter steps are not divided: they take little time, and small products are inefficient.
MIN_DIVIDED = 64

Streams = tuple[mx.Stream | mx.ThreadLocalStream, ...]
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
    with platform.prefill_streams() as streams:
        while done < len(ids) and not (should_stop and should_stop()):
            size = step_size if pace is None else pace.size(step_size, done)
            step = ids[done : done + size]
            begun_s = time.perf_counter()
            compute_step(network, cache, step, streams)
            if pace is not None:
                pace.took(len(step), time.perf_counter() - begun_s)
            done += len(step)
            if on_held is not None:
                on_held(step)
            if on_progress is not None:
                on_progress(done, len(ids))
    return done


def compute_step(network: nn.Module, cache: Cache, step: TokenIds, streams: Streams) -> None:
    """Put the tokens `step: (S,)` into the cache and evaluate its state.

    With several `streams`, usable in this thread, computes that many pieces at the same time.
    """
    size = _piece_size(cache, len(step), len(streams))
    pieces = [step[first : first + size] for first in range(0, len(step), size)]
    for first in range(0, len(pieces), len(streams)):
        for piece, stream in zip(pieces[first:], streams, strict=False):
            with mx.stream(stream):
                network(mx.array(piece)[None], cache=cache)
        mx.eval([layer.state for layer in cache])
        mx.clear_cache()


def _piece_size(cache: Cache, tokens: int, streams: int) -> int:
    """Tokens per piece of a step. A window narrower than the step would lose tokens before the
    caller can copy them, so that step is not divided."""
    narrowest = min((w.max_size for w in windows(cache) if w.max_size is not None), default=tokens)
    if streams == 1 or tokens < MIN_DIVIDED or narrowest < tokens:
        return tokens
    return min(PIECE, -(-tokens // streams))


class Reading(TypedDict, total=False):
    """Options for reading a prompt: the arguments of `prefill` other than the prompt."""

    step_size: Required[int]
    pace: Pace | None
    on_progress: Progress | None
    on_held: OnHeld | None
    should_stop: ShouldStop | None


class PromptReader(Protocol):
    """Puts a prompt's ids into the cache like `prefill`, but may reuse some from elsewhere."""

    reused_tokens: int

    def __call__(
        self, network: nn.Module, cache: Cache, ids: TokenIds, **how: Unpack[Reading]
    ) -> int: ...
