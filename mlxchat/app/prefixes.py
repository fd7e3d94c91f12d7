"""What was read before and is on the disk: prompt prefixes, if that is worth it, and blocks, which
are joined in any order. Problems are reported."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from mlx import nn

from mlxchat import paths
from mlxchat.cache import Cache, check_joinable, make_joinable
from mlxchat.cache.layers import plain_refusal
from mlxchat.engine.blocks import BlockReader, join_refusal
from mlxchat.engine.prefill import OnHeld
from mlxchat.errors import CacheError
from mlxchat.models.model import Model
from mlxchat.request import Setup
from mlxchat.store.prefix_cache import DiskBlocks, PrefixCache
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import Prompt

# A shorter prompt is read faster than it is found.
MIN_TOKENS = 1_024


class Prefixes:
    """The prefix cache on the disk; it neither reads nor writes if `setup` turns it off."""

    def __init__(self, setup: Setup, notify: Callable[[str], None]) -> None:
        self._limit_bytes = setup.prefix_cache_bytes
        self._wanted = setup.prefix_cache
        self._notify = notify
        self._open: tuple[Model, PrefixCache] | None = None

    def begin(
        self, model: Model, cache: Cache, ids: TokenIds, window: int | None
    ) -> tuple[int, OnHeld | None]:
        """Fill the empty cache with the known prefix of `ids: (T,)`; return its number of tokens,
        and a function, if any, to call with the ids of each step that is prefilled."""
        if not self._wanted or len(ids) < MIN_TOKENS:
            return 0, None
        if self._open is None or self._open[0] is not model:
            self.close()
            self._open = model, PrefixCache(paths.prefix_cache_dir(), model, self._limit_bytes)
        prefixes = self._open[1]
        reason = plain_refusal(cache)
        if reason is not None:
            self._notify(f"the prompt is not cached: {reason}")
            return 0, None
        if model.peers is not None:
            return model.peers.begin_prefix(prefixes, cache, ids, window), None
        cached = prefixes.fill(cache, ids, window)
        return cached, prefixes.recorder(cache, ids, cached, window)

    def close(self) -> None:
        """Wait until everything is written."""
        if self._open is None:
            return
        (_, prefixes), self._open = self._open, None
        prefixes.close()
        if prefixes.error is not None:
            self._notify(f"cannot write the prefix cache: {prefixes.error}")


def block_reader(
    setup: Setup,
    model: Model,
    cache: Cache,
    prompt: Prompt,
    *,
    window: int | None,
    notify: Callable[[str], None],
    stack: ExitStack,
) -> BlockReader | None:
    """The reader that fills the empty cache with the prompt's blocks; None for ordinary prefill.

    What could not be stored is reported at the end of `stack`. Raises CacheError with the reason
    if this model's blocks cannot be joined.
    """
    if not prompt.blocks:
        return None
    with _advising():
        make_joinable(model.network, cache)
    if reason := join_refusal(cache, len(prompt.ids), window):
        notify(f"blocks are read as ordinary text: {reason}")
        return None
    store = DiskBlocks(paths.prefix_cache_dir(), model, setup.prefix_cache_bytes)
    stack.callback(lambda: store.error and notify(f"cannot save a block: {store.error}"))
    return BlockReader(prompt, store)


def check_blocks(network: nn.Module) -> None:
    """Raises CacheError if blocks cannot be joined, before any weights are loaded."""
    with _advising():
        check_joinable(network)


@contextmanager
def _advising() -> Iterator[None]:
    try:
        yield
    except CacheError as error:
        raise CacheError(
            f"--block cannot be used: {error}; give the documents with --file"
        ) from error
