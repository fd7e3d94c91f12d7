"""Reading a prompt with blocks: each block is prefilled once, after the head that all prompts
share, and can then be joined to any prompt, at any position.

The head is what the template writes before the user's text. A block sees the head and itself, not
the blocks before it; the text after the blocks sees all of them. `store` keeps blocks on disk.

Source: Prompt Cache (Gim et al., 2023). Recomputing the first tokens of each block (EPIC, Hu et
al., 2024), or those whose keys and values differ most (CacheBlend, Yao et al., 2024), was tried
and did not help: see the end of CHANGELOG.md.
"""

from dataclasses import dataclass
from typing import Protocol, Unpack

from mlx import nn

from mlxchat.cache import Block, BlockRecorder, Cache, join_block, make_joinable, max_positions
from mlxchat.engine.pace import Pace
from mlxchat.engine.prefill import OnHeld, Reading, ShouldStop, prefill
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import Prompt
from mlxchat.units import Progress


class BlockStore(Protocol):
    """Stores blocks by the ids of the head and their own ids."""

    def load(self, head: TokenIds, ids: TokenIds) -> Block | None: ...

    def save(self, head: TokenIds, ids: TokenIds, block: Block) -> None: ...


def join_refusal(cache: Cache, prompt_tokens: int, window: int | None) -> str | None:
    """Why blocks cannot be joined to a prompt of this length; None if they can."""
    limit = max_positions(cache)
    if limit is not None and prompt_tokens > limit:
        return f"this model rescales its positions beyond {limit:,} tokens"
    if window is not None and prompt_tokens > window:
        return larger_than_window(prompt_tokens, window)
    return None


def larger_than_window(prompt_tokens: int, window: int) -> str:
    return f"the prompt ({prompt_tokens:,} tokens) is larger than the window ({window:,})"


class BlockReader:
    """Reads a prompt with blocks into an empty cache: called like `prefill`, with the prompt's ids.

    Blocks not found in the store are prefilled separately, stored and joined, so the cache is the
    same either way. `reused_tokens` counts the tokens of blocks found.
    """

    def __init__(self, prompt: Prompt, store: BlockStore) -> None:
        self._prompt = prompt
        self._store = store
        self.reused_tokens = 0

    def __call__(
        self, network: nn.Module, cache: Cache, ids: TokenIds, **how: Unpack[Reading]
    ) -> int:
        """Return how many of `ids: (T,)` the cache now holds: all, unless `should_stop` ended it.

        Raises CacheError if blocks cannot be joined.
        """
        make_joinable(network, cache)
        reading = _BlockReading(network, cache, ids, **how)
        head = self._prompt.head
        if not reading.compute(head):
            return reading.done
        after_head = cache.fork()
        for start, stop in self._prompt.blocks:
            if not reading.compute(start):
                break
            stored = self._store.load(ids[:head], ids[start:stop])
            block = stored or self._build(reading, after_head, start, stop)
            if block is None:
                break
            reading.join(block, start)
            if stored is not None:
                self.reused_tokens += block.tokens
        else:
            reading.compute(len(ids))
        return reading.done

    def _build(
        self, reading: "_BlockReading", after_head: Cache, start: int, stop: int
    ) -> Block | None:
        """Prefill the block right after the head and store it; None if stopped."""
        cache = after_head.fork()
        recorder = BlockRecorder(cache)
        ids = reading.ids[start:stop]
        if reading.prefill(cache, ids, recorder) < len(ids):
            return None
        block = recorder.block()
        self._store.save(reading.ids[: self._prompt.head], ids, block)
        return block


@dataclass(slots=True)
class _BlockReading:
    """The state of reading a prompt: its first `done` tokens are in the cache."""

    network: nn.Module
    cache: Cache
    ids: TokenIds
    step_size: int
    pace: Pace | None = None
    on_progress: Progress | None = None
    on_held: OnHeld | None = None
    should_stop: ShouldStop | None = None
    done: int = 0
    reported: int = 0

    def compute(self, stop: int) -> bool:
        """Prefill up to `stop`; False if stopped before."""
        ids = self.ids[self.done : stop]
        self.done += self.prefill(self.cache, ids, self.on_held)
        return self.done == stop

    def prefill(self, cache: Cache, ids: TokenIds, on_held: OnHeld | None) -> int:
        return prefill(
            self.network,
            cache,
            ids,
            step_size=self.step_size,
            pace=self.pace,
            on_progress=lambda done, _: self._report(self.done + done),
            on_held=on_held,
            should_stop=self.should_stop,
        )

    def join(self, block: Block, start: int) -> None:
        """Join the block, whose first token is the prompt's `start`.

        Done in steps, like a prefill, so that a narrow window ends up with no more tokens.
        """
        stop = start + block.tokens
        for first in range(start, stop, self.step_size):
            last = min(first + self.step_size, stop)
            join_block(self.cache, block, first - start, last - start)
            self.done = last
            if self.on_held is not None:
                self.on_held(self.ids[first:last])
        self._report(self.done)

    def _report(self, done: int) -> None:
        # A new block is prefilled first, which takes the time, and then joined.
        self.reported = max(self.reported, done)
        if self.on_progress is not None:
            self.on_progress(self.reported, len(self.ids))
