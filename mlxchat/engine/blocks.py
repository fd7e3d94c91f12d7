"""Reading a prompt with blocks: each block is prefilled once, after the head that all prompts
share, and can then be joined to any prompt, at any position.

The head is what the template writes before the user's text. A block sees the head and itself, not
the blocks before it; the text after the blocks sees all of them. `store` keeps blocks on disk.

Source: Prompt Cache (Gim et al., 2023). Recomputing the first tokens of each block (EPIC, Hu et
al., 2024), or those whose keys and values differ most (CacheBlend, Yao et al., 2024), was tried
and did not help: see the end of CHANGELOG.md.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from mlx import nn

from mlxchat.cache import Block, BlockRecorder, Cache, join_block, make_joinable, max_positions
from mlxchat.engine.prefill import OnHeld, prefill
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
        """The block from the store; or prefilled right after the head, and stored. None if
        stopped."""
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
