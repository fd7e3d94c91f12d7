"""Blocks: the keys and values of a text prefilled once, reusable after any other text.

A block is copied out of one cache and joined to another, its keys shifted to their new positions.
It was computed after a different text than it then follows, so a joined block is an approximation;
`mlxchat.engine.prefill` improves on it. One sequence at a time.

Source: Prompt Cache (Gim et al., 2023), reusing attention states of text modules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import mlx.core as mx
import numpy as np

from mlxchat.cache.layers import LayerCache, plain_refusal, recurrent_states, windows
from mlxchat.cache.ring import Entries


@dataclass(frozen=True, slots=True)
class Block:
    """Keys and values `(1, H_kv, T, D)` of T tokens, the first of them at `position`, for each
    window; none for a window that the model does not use."""

    position: int
    layers: tuple[Entries, ...]

    @property
    def tokens(self) -> int:
        """T."""
        return max(entries.tokens for entries in self.layers)


class BlockRecorder:
    """Copies what each prefill step leaves in the cache, when called with the step's ids.

    Copying step by step gets everything even from windows narrower than the block.
    """

    def __init__(self, cache: Sequence[LayerCache]) -> None:
        self._windows = windows(cache)
        self._position = max(window.offset for window in self._windows)
        self._steps: list[list[Entries]] = []

    def __call__(self, step: np.ndarray) -> None:
        latest = [window.entries.between(-len(step), None) for window in self._windows]
        # Copied now: a lazy slice would keep the whole cache alive.
        taken = [Entries(*each[:2]).each(mx.contiguous) for each in latest]
        mx.eval([each.arrays for each in taken])
        self._steps.append(taken)

    def block(self) -> Block:
        """The copies, as one block."""
        layers = tuple(reduce(Entries.followed_by, each) for each in zip(*self._steps, strict=True))
        return Block(self._position, layers)


def block_refusal(cache: Sequence[LayerCache]) -> str | None:
    """Why blocks cannot be joined to a cache of these types; None if they may be."""
    if (refusal := plain_refusal(cache)) or not recurrent_states(cache):
        return refusal
    return "this model has recurrent layers, whose state cannot be joined"


def join_block(cache: Sequence[LayerCache], block: Block, start: int, stop: int) -> None:
    """Append the block's tokens `start` to `stop` to the cache, shifted to its positions.

    The cache must have been made joinable.
    """
    for window, entries in zip(windows(cache), block.layers, strict=True):
        if entries.tokens:
            distance = window.offset - block.position - start
            window.update_and_fetch(*window.moved(*entries.between(start, stop).pair, distance))
    mx.eval([layer.state for layer in cache])
