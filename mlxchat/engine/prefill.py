"""Prefill: many prompt tokens at a time, in steps short enough to stop at; or in blocks, each of
which is prefilled once and can then be joined to any prompt, at any position.

On a CPU with several cores, a step is computed in pieces, two at a time: MLX's CPU backend computes
most of attention on one core, and a piece needs only the keys and values of the previous one, layer
by layer. Pieces also spend less time and memory on keys that the mask hides.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.cache.block import Block, BlockRecorder, join_block
from mlxchat.cache.build import make_joinable
from mlxchat.cache.layers import Cache, windows
from mlxchat.models.skeleton import named_parameters
from mlxchat.text.encoder import TokenIds
from mlxchat.text.tokens import Prompt
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

        Steps end at multiples of their size and of `max_tokens`, so at the prefix cache's pages.
        """
        # One token alone would be decoded, after kept tokens that are one position further away.
        size = min(max_tokens, max(self._lead(self._size), 2))
        return min(size - done % size, max_tokens - done % max_tokens)

    def took(self, tokens: int, seconds: float) -> None:
        """Report a completed step."""
        affordable = _power_of_two(TARGET_S * tokens / max(seconds, 1e-9))
        # A full step takes no longer per token than a short one, which does not predict its time.
        if seconds > TOO_LONG_S or affordable > self._size:
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
    after: int = 0,
    pace: Pace | None = None,
    on_progress: Progress | None = None,
    on_held: OnHeld | None = None,
    should_stop: ShouldStop | None = None,
) -> int:
    """Put the tokens `ids: (T,)` into the cache, `step_size` at a time; return how many went in.

    Steps begin where they would if the `after` tokens before them were read in this call, too. A
    `pace` shortens steps that take too long. Only the cache's state is evaluated, so no logits
    are computed. `on_held` is called with the ids of each step once the cache holds them,
    `on_progress` with the tokens done and the total, before the first step and after each. Stops
    between two steps if `should_stop` returns True.
    """
    done = 0
    if on_progress is not None:
        on_progress(done, len(ids))
    with platform.prefill_streams() as streams:
        while done < len(ids) and not (should_stop and should_stop()):
            begun = (after + done) % step_size
            size = step_size - begun if pace is None else pace.size(step_size, after + done)
            step = ids[done : done + size]
            begun_s = time.perf_counter()
            compute_step(network, cache, step, streams, continues=begun > 0)
            if pace is not None:
                pace.took(len(step), time.perf_counter() - begun_s)
            done += len(step)
            if on_held is not None:
                on_held(step)
            if on_progress is not None:
                on_progress(done, len(ids))
    return done


def compute_step(
    network: nn.Module, cache: Cache, step: TokenIds, streams: Streams, *, continues: bool = False
) -> None:
    """Put the tokens `step: (S,)` into the cache and evaluate its state.

    With several `streams`, usable in this thread, computes that many pieces at the same time. A
    piece, or a step that `continues` the previous one, moves no kept tokens, so that the cache is
    the same whatever the speed of the machine and the number of its cores.
    """
    size = _piece_size(cache, len(step), len(streams))
    pieces = [step[first : first + size] for first in range(0, len(step), size)]
    for first in range(0, len(pieces), len(streams)):
        for piece, stream in zip(pieces[first:], streams, strict=False):
            for window in windows(cache):
                window.continues_step = continues
            continues = True
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


class BlockStore(Protocol):
    """Stores blocks by the ids of the head and their own ids."""

    def load(self, head: TokenIds, ids: TokenIds) -> Block | None: ...

    def save(self, head: TokenIds, ids: TokenIds, block: Block) -> None: ...


def join_refusal(cache: Cache, prompt_tokens: int, window: int | None) -> str | None:
    """Why blocks cannot be joined to a prompt of this length; None if they can."""
    # After that many positions, a rope changes.
    shifts = [window.shift for window in windows(cache)]
    limit = min((s.limit for s in shifts if s is not None and s.limit is not None), default=None)
    if limit is not None and prompt_tokens > limit:
        return f"this model rescales its positions beyond {limit:,} tokens"
    if window is not None and prompt_tokens > window:
        return larger_than_window(prompt_tokens, window)
    return None


def larger_than_window(prompt_tokens: int, window: int) -> str:
    return f"the prompt ({prompt_tokens:,} tokens) is larger than the window ({window:,})"


class BlockReader:
    """Reads a prompt with blocks into an empty cache: called like `prefill`, with the prompt's ids.

    A block is prefilled after the head, which is what the template writes before the user's text.
    It sees the head and itself, not the blocks before it; the text after the blocks sees all of
    them. Blocks not found in the store are prefilled separately, stored and joined, so the cache is
    the same either way. `reused_tokens` counts the tokens of blocks found.

    Source: Prompt Cache (Gim et al., 2023). Recomputing the first tokens of each block (EPIC, Hu et
    al., 2024), or those whose keys and values differ most (CacheBlend, Yao et al., 2024), was tried
    and did not help: see the end of CHANGELOG.md.
    """

    def __init__(self, prompt: Prompt, store: BlockStore) -> None:
        self.reused_tokens = 0
        self._prompt = prompt
        self._store = store

    def __call__(
        self,
        network: nn.Module,
        cache: Cache,
        ids: TokenIds,
        *,
        step_size: int,
        on_progress: Progress | None = None,
        on_held: OnHeld | None = None,
        **how: Any,
    ) -> int:
        """Return how many of `ids: (T,)` the cache now holds: all, unless `should_stop` ended it.

        Raises CacheError if blocks cannot be joined.
        """
        make_joinable(network, cache)
        head, done, reported = self._prompt.head, 0, 0

        def report(more: int, _: int) -> None:
            # A new block is prefilled first, which takes the time, and then joined.
            nonlocal reported
            reported = max(reported, done + more)
            if on_progress is not None:
                on_progress(reported, len(ids))

        read = partial(prefill, network, step_size=step_size, on_progress=report, **how)

        def compute(stop: int) -> bool:
            nonlocal done
            done += read(cache, ids[done:stop], on_held=on_held)
            return done == stop

        if not compute(head):
            return done
        after_head = cache.fork()
        for start, stop in self._prompt.blocks:
            if not compute(start):
                return done
            block = self._block(read, after_head, ids[:head], ids[start:stop])
            if block is None:
                return done
            # In steps, like a prefill, so that a narrow window ends up with no more tokens.
            for first in range(start, stop, step_size):
                done = min(first + step_size, stop)
                join_block(cache, block, first - start, done - start)
                if on_held is not None:
                    on_held(ids[first:done])
            report(0, 0)
        compute(len(ids))
        return done

    def _block(
        self, read: Callable[..., int], after_head: Cache, head: TokenIds, ids: TokenIds
    ) -> Block | None:
        """The block from the store; or prefilled after the head, and stored. None if stopped."""
        block = self._store.load(head, ids)
        if block is not None:
            self.reused_tokens += block.tokens
            return block
        cache = after_head.fork()
        recorder = BlockRecorder(cache)
        if read(cache, ids, on_held=recorder) < len(ids):
            return None
        block = recorder.block()
        self._store.save(head, ids, block)
        return block
