"""Blocks: the keys and values of a text that was prefilled once, and that stands behind any other.

Taking one out of a cache, and joining it to another: its keys are shifted to where it now stands.
What it saw when it was computed is another text than what it then stands behind, so a joined block
is an approximation; how to better it is `mlxchat.engine.blocks`' business. One sequence at a time.

Source: Prompt Cache (Gim et al., 2023), reusing attention states of text modules.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxchat.cache.chunk import ChunkCache
from mlxchat.cache.layers import LayerCache, leaves, recurrent_states, windows
from mlxchat.cache.window import WindowCache


@dataclass(frozen=True, slots=True)
class Block:
    """Keys and values `(1, H_kv, T, D)` of the T tokens that stood at `position` and behind.

    One pair a window; None for a window that the model gives no tokens.
    """

    position: int
    layers: tuple[tuple[mx.array, mx.array] | None, ...]

    @property
    def tokens(self) -> int:
        """T."""
        return next(pair[0].shape[2] for pair in self.layers if pair is not None)


class BlockTaker:
    """Called with the ids of each prefill step, it copies what the step left in the cache: of
    narrow windows too, which will have evicted some of it by the block's end."""

    def __init__(self, cache: Sequence[LayerCache]) -> None:
        self._windows = windows(cache)
        self._position = max(window.offset for window in self._windows)
        self._steps: list[list[tuple[mx.array, mx.array] | None]] = []

    def __call__(self, step: np.ndarray) -> None:
        taken = [_latest(window, len(step)) for window in self._windows]
        # Copied now: a slice would hold on to all that is in the cache.
        mx.eval([pair for pair in taken if pair is not None])
        self._steps.append(taken)

    def block(self) -> Block:
        """What was taken, together."""
        return Block(
            self._position, tuple(_joined(steps) for steps in zip(*self._steps, strict=True))
        )


def block_refusal(cache: Sequence[LayerCache]) -> str | None:
    """None, or in words why blocks cannot be joined to such a cache, as far as its kinds tell."""
    for leaf in leaves(cache):
        if isinstance(leaf, ChunkCache):
            return "this model attends within chunks"
        if recurrent_states([leaf]):
            return "this model has recurrent layers, whose state cannot be joined"
        if type(leaf) is not WindowCache:
            return f"this model keeps its past in a {type(leaf).__name__}"
    return None


def most_positions(cache: Sequence[LayerCache]) -> int | None:
    """Behind how many positions a rope becomes another one; None where none does."""
    shifts = [window.shift for window in windows(cache)]
    return min((s.limit for s in shifts if s is not None and s.limit is not None), default=None)


def join_block(cache: Sequence[LayerCache], block: Block, start: int, stop: int) -> None:
    """Put the block's tokens `start` to `stop` behind what the cache holds, as if at its positions.

    The cache must have been made joinable.
    """
    for window, pair in zip(windows(cache), block.layers, strict=True):
        if pair is not None:
            keys, values = (array[..., start:stop, :] for array in pair)
            window.join(keys, values, block.position + start)
    mx.eval([layer.state for layer in cache])


def _latest(window: WindowCache, tokens: int) -> tuple[mx.array, mx.array] | None:
    keys, values, _ = window.entries
    if keys is None or values is None:
        return None
    return mx.contiguous(keys[..., -tokens:, :]), mx.contiguous(values[..., -tokens:, :])


def _joined(steps: Sequence[tuple[mx.array, mx.array] | None]) -> tuple[mx.array, mx.array] | None:
    present = [pair for pair in steps if pair is not None]
    if not present:
        return None
    keys = mx.concatenate([pair[0] for pair in present], axis=2)
    return keys, mx.concatenate([pair[1] for pair in present], axis=2)
