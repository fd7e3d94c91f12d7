"""Prefill: many prompt tokens at a time, in steps that keep nobody waiting.

On a CPU with several cores, a step is computed in pieces, two at a time: MLX's CPU backend computes
most of attention on one core, and a piece needs only the keys and values of the previous one, layer
by layer. Pieces also spend less time and memory on keys that the mask hides.
"""

import time
from collections.abc import Callable

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.cache import Cache
from mlxchat.cache.layers import windows
from mlxchat.models.skeleton import named_parameters
from mlxchat.text.spans import TokenIds
from mlxchat.units import Progress

PIECE = 128  # tokens

# Shorter steps are not divided: they take little time, and small products are inefficient.
MIN_DIVIDED = 64

# Nothing can be shown, stopped or saved during a step, which on a slow device takes minutes with
# 512 tokens: steps are shortened to the target if one takes too long. That is well above the
# target, so that the same run on the same machine nearly always takes the same steps.
TARGET_S, TOO_LONG_S = 2.0, 2.5

# Floating-point operations per second assumed for the first step; measured times replace them. GPU:
# about an M2 Pro. CPU in float32: half of what two old cores reach. In any other form, a CPU may
# take seconds for one token: 0.07e9 was measured for 4 bits in float16.
GPU_FLOPS, CPU_FLOAT32_FLOPS, CPU_OTHER_FLOPS = 5e12, 20e9, 0.1e9

# GPU steps should be multiples of 32: see ml-explore/mlx issue 3856.
MIN_FIRST_ON_GPU = 32

Streams = tuple[mx.Stream | mx.ThreadLocalStream, ...]
OnHeld = Callable[[TokenIds], None]
ShouldStop = Callable[[], bool]


class Pace:
    """Sizes of prefill steps: powers of two, or the largest step that the caller allows.

    `first` is the initial size. A step that takes too long makes the following ones shorter; quick
    ones make them longer again. `lead` makes a size that of all machines.
    """

    def __init__(self, first: int, lead: Callable[[int], int] = lambda size: size) -> None:
        self._size = first
        self._lead = lead

    def size(self, max_tokens: int, done: int) -> int:
        """Tokens in the next step, at most `max_tokens`, after `done` tokens of this prompt.

        Steps end at multiples of their size, and so still at the page boundaries of the prefix
        cache after the size has changed.
        """
        size = min(max_tokens, self._lead(self._size))
        return size - done % size

    def took(self, tokens: int, seconds: float) -> None:
        """Report a completed step."""
        affordable = _power_of_two(TARGET_S * tokens / max(seconds, 1e-9))
        # A short step does not predict the time of a full one, but a full one takes no longer per
        # token.
        longer = affordable > self._size
        if seconds > TOO_LONG_S or longer:
            self._size = affordable


def first_step(network: nn.Module) -> int:
    """Tokens, a power of two, that this device should prefill in the target time."""
    arrays = [array for _, array in named_parameters(network)]
    # Packed weights count as 4 bits.
    weights = sum(array.size * (8 if array.dtype == mx.uint32 else 1) for array in arrays)
    flops = CPU_OTHER_FLOPS
    if platform.on_gpu():
        flops = GPU_FLOPS
    elif platform.has_fast_blas() and all(array.dtype == mx.float32 for array in arrays):
        flops = CPU_FLOAT32_FLOPS
    affordable = _power_of_two(TARGET_S * flops / max(2 * weights, 1))
    return max(affordable, MIN_FIRST_ON_GPU) if platform.on_gpu() else affordable


def _power_of_two(number: float) -> int:
    """The largest power of two up to `number`; at least 1."""
    return 1 << max(int(number).bit_length() - 1, 0)


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
