"""Blocks: the keys and values of a text prefilled once, reusable after any other text.

A block is copied out of one cache and joined to another, its keys shifted to their new positions.
It was computed after a different text than it then follows, so a joined block is an approximation;
`mlxchat.engine.prefill` improves on it. One sequence at a time.

Source: Prompt Cache (Gim et al., 2023), reusing attention states of text modules.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxchat.cache.layers import LayerCache, plain_refusal, recurrent_states, windows
from mlxchat.cache.window import WindowCache


@dataclass(frozen=True, slots=True)
class Block:
    """Keys and values `(1, H_kv, T, D)` of T tokens, the first of them at `position`.

    One pair per window; None for a window that the model does not use.
    """

    position: int
    layers: tuple[tuple[mx.array, mx.array] | None, ...]

    @property
    def tokens(self) -> int:
        """T."""
        return next(pair[0].shape[2] for pair in self.layers if pair is not None)


class BlockRecorder:
    """Copies what each prefill step leaves in the cache, when called with the step's ids.

    Copying step by step gets everything even from windows narrower than the block.
    """

    def __init__(self, cache: Sequence[LayerCache]) -> None:
        self._windows = windows(cache)
        self._position = max(window.offset for window in self._windows)
        self._steps: list[list[tuple[mx.array, mx.array] | None]] = []

    def __call__(self, step: np.ndarray) -> None:
        taken = [_latest(window, len(step)) for window in self._windows]
        # Evaluated now: a lazy slice would keep the whole cache alive.
        mx.eval([pair for pair in taken if pair is not None])
        self._steps.append(taken)

    def block(self) -> Block:
        """The copies, as one block."""
        return Block(
            self._position, tuple(_joined(steps) for steps in zip(*self._steps, strict=True))
        )


def block_refusal(cache: Sequence[LayerCache]) -> str | None:
    """Why blocks cannot be joined to a cache of these types; None if they may be."""
    if recurrent_states(cache):
        return "this model has recurrent layers, whose state cannot be joined"
    return plain_refusal(cache)


def max_positions(cache: Sequence[LayerCache]) -> int | None:
    """The number of positions after which a rope changes; None if none does."""
    shifts = [window.shift for window in windows(cache)]
    return min((s.limit for s in shifts if s is not None and s.limit is not None), default=None)


def join_block(cache: Sequence[LayerCache], block: Block, start: int, stop: int) -> None:
    """Append the block's tokens `start` to `stop` to the cache, shifted to its positions.

    The cache must have been made joinable.
    """
    for window, pair in zip(windows(cache), block.layers, strict=True):
        if pair is not None:
            keys, values = (array[..., start:stop, :] for array in pair)
            distance = window.offset - block.position - start
            window.update_and_fetch(*window.moved(keys, values, distance))
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
