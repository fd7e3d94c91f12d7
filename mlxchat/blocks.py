"""Reading a prompt that holds blocks: each is prefilled once, behind the head that all prompts
share, and is then joined to any prompt, at any place.

The head is what the template writes before the user's text. A block has seen the head and itself,
not the text that it is then joined to: that is what its repair is for. What comes behind a block
sees all that comes before. Where blocks are kept is `store`'s business.

Source: blocks that see nothing but themselves, from Prompt Cache (Gim et al., 2023); recomputing
the first tokens of each, from EPIC (Hu et al., 2024); choosing tokens by how far their keys and
values in an early layer are off, from CacheBlend (Yao et al., 2024).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import (
    Block,
    BlockTaker,
    fork,
    join_block,
    make_joinable,
    most_positions,
    token_differences,
)
from mlxchat.generate import Cache, OnHeld, Progress, ShouldStop, never, nobody, prefill
from mlxchat.pace import Pace
from mlxchat.settings import BlockSettings, Repair
from mlxchat.tokens import Prompt, TokenIds

# Tokens that are chosen together when a share of a block is recomputed: each run is one step.
RUN = 16

# The layers that are computed to see how far tokens are off. The first one's keys and values know
# nothing of what comes before: it takes two.
TRIED_LAYERS = 2


class BlockStore(Protocol):
    """Where blocks are kept, by the ids of the head and their own."""

    def load(self, head: TokenIds, ids: TokenIds) -> Block | None: ...

    def save(self, head: TokenIds, ids: TokenIds, block: Block) -> None: ...


def does_not_fit(cache: Cache, prompt_tokens: int, window: int | None) -> str | None:
    """None, or in words why blocks cannot be joined to a prompt of so many tokens."""
    most = most_positions(cache)
    if most is not None and prompt_tokens > most:
        return f"this model's positions mean something else beyond {most:,} tokens"
    if window is not None and prompt_tokens > window:
        return f"the prompt is {prompt_tokens:,} tokens and the window holds {window:,}"
    return None


class BlockReader:
    """Puts a prompt with blocks into an empty cache: called as `prefill` is, with its ids.

    Blocks that are not stored are prefilled apart, joined and stored: the cache comes out the same
    as when they are. `reused_tokens` are those that came out of the store and were not recomputed.
    """

    def __init__(self, prompt: Prompt, store: BlockStore, settings: BlockSettings) -> None:
        self._prompt = prompt
        self._store = store
        self._settings = settings
        self.reused_tokens = 0

    def __call__(
        self,
        network: nn.Module,
        cache: Cache,
        ids: TokenIds,
        *,
        step_size: int,
        pace: Pace | None = None,
        on_progress: Progress | None = None,
        on_held: OnHeld = nobody,
        should_stop: ShouldStop = never,
    ) -> int:
        """Return how many of `ids: (T,)`, the prompt's first, the cache holds now: all of them, or
        those before `should_stop` said so. Raises CacheError where blocks cannot be joined.
        """
        make_joinable(network, cache)
        reading = _Reading(network, cache, ids, step_size, pace, on_progress, on_held, should_stop)
        head = self._prompt.head
        if not reading.compute(head):
            return reading.done
        behind_head = fork(cache)
        for start, stop in self._prompt.blocks:
            if not reading.compute(start):
                break
            stored = self._store.load(ids[:head], ids[start:stop])
            block = stored or self._build(reading, behind_head, start, stop)
            if block is None:
                break
            computed = self._repair(reading, block, start)
            if stored is not None:
                self.reused_tokens += reading.done - start - computed
            if reading.done < stop:
                break
        else:
            reading.compute(len(ids))
        return reading.done

    def _build(
        self, reading: "_Reading", behind_head: Cache, start: int, stop: int
    ) -> Block | None:
        """Prefill the block behind the head alone and store it; None where it was stopped."""
        cache = fork(behind_head)
        taker = BlockTaker(cache)
        ids = reading.ids[start:stop]
        if reading.prefill(cache, ids, taker) < len(ids):
            return None
        block = taker.block()
        self._store.save(reading.ids[: self._prompt.head], ids, block)
        return block

    def _repair(self, reading: "_Reading", block: Block, start: int) -> int:
        """Join the block, some of its tokens computed where they now stand; return how many."""
        computed = 0
        for first, last in self._runs(reading, block, start):
            reading.join(block, start, start + first)
            reading.compute(start + last)
            computed += last - first
        reading.join(block, start, start + block.tokens)
        return computed

    def _runs(self, reading: "_Reading", block: Block, start: int) -> Sequence[tuple[int, int]]:
        """The spans of the block that are to be computed."""
        settings = self._settings
        # Right behind the head the block stands where it was computed: nothing is to be mended.
        if settings.repair is Repair.NONE or start == self._prompt.head:
            return []
        if settings.link_share is None:
            return [(0, min(settings.link_tokens, block.tokens))]
        return _runs_of(reading.differences(block, start), settings.link_share)


@dataclass(slots=True)
class _Reading:
    """A prompt on its way into a cache, of which the first `done` tokens are in."""

    network: nn.Module
    cache: Cache
    ids: TokenIds
    step_size: int
    pace: Pace | None
    on_progress: Progress | None
    on_held: OnHeld
    should_stop: ShouldStop
    done: int = 0
    told: int = 0

    def compute(self, stop: int) -> bool:
        """Prefill up to `stop`; False where it was stopped before."""
        ids = self.ids[self.done : stop]
        self.done += self.prefill(self.cache, ids, self.on_held)
        return self.done == stop

    def prefill(self, cache: Cache, ids: TokenIds, on_held: OnHeld) -> int:
        return prefill(
            self.network,
            cache,
            ids,
            step_size=self.step_size,
            pace=self.pace,
            on_progress=lambda done, _: self._tell(self.done + done),
            on_held=on_held,
            should_stop=self.should_stop,
        )

    def join(self, block: Block, start: int, stop: int) -> None:
        """Join the block, whose first token is the prompt's `start`, from where we are to `stop`:
        in steps, as a prefill would, so that a narrow window holds no more than behind one."""
        for first in range(self.done, stop, self.step_size):
            last = min(first + self.step_size, stop)
            join_block(self.cache, block, first - start, last - start)
            self.done = last
            self.on_held(self.ids[first:last])
        self._tell(self.done)

    def differences(self, block: Block, start: int) -> np.ndarray:
        """How far each token of the block is off, `(T,)`, in the keys and values of the first
        layers: those are computed in the prompt's place, and nothing deeper is, since MLX computes
        what is looked at."""
        trial = fork(self.cache)
        taker = BlockTaker(trial[:TRIED_LAYERS])
        stop = start + block.tokens
        first = start
        while first < stop:
            step = self.ids[first : min(first + self._size(first - start), stop)]
            self.network(mx.array(step)[None], cache=trial)
            taker(step)
            # Step by step, so that none of them takes long.
            mx.eval([layer.state for layer in trial[:TRIED_LAYERS]])
            first += len(step)
        return np.array(token_differences(trial, taker.block(), block))

    def _size(self, done: int) -> int:
        return self.step_size if self.pace is None else self.pace.size(self.step_size, done)

    def _tell(self, done: int) -> None:
        # A block that is not known yet is first prefilled, which takes the time, and then joined.
        self.told = max(self.told, done)
        if self.on_progress is not None:
            self.on_progress(self.told, len(self.ids))


def _runs_of(differences: np.ndarray, share: float) -> list[tuple[int, int]]:
    """The spans, in order, of the runs that differ most: so many that they are the share of all."""
    starts = np.arange(0, len(differences), RUN)
    by_run = np.add.reduceat(differences, starts)
    wanted = math.ceil(share * len(starts))
    chosen = np.sort(starts[np.argsort(-by_run, kind="stable")[:wanted]])
    spans: list[tuple[int, int]] = []
    for start in chosen.tolist():
        stop = min(start + RUN, len(differences))
        if spans and spans[-1][1] == start:
            spans[-1] = spans[-1][0], stop
        else:
            spans.append((start, stop))
    return spans
