"""Blocks: documents that are read once, saved on the disk, and joined in any order."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from mlx import nn

from mlxchat import paths
from mlxchat.cache import Cache, check_joinable, make_joinable
from mlxchat.engine.blocks import BlockReader, join_refusal
from mlxchat.errors import CacheError
from mlxchat.models.model import Model
from mlxchat.request import Setup
from mlxchat.store.block_store import DiskBlocks
from mlxchat.text.tokens import Prompt, Tokenizer


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
    with refused():
        make_joinable(model.network, cache)
    if reason := join_refusal(cache, len(prompt.ids), window):
        notify(f"blocks are read as ordinary text: {reason}")
        return None
    store = DiskBlocks(paths.prefix_cache_dir(), model, setup.prefix_cache_bytes)
    stack.callback(_report, store, notify)
    return BlockReader(prompt, store)


def check_model(network: nn.Module, _: Tokenizer) -> None:
    """Raises CacheError if blocks cannot be joined, before any weights are loaded."""
    with refused():
        check_joinable(network)


@contextmanager
def refused() -> Iterator[None]:
    """Add advice to a refusal."""
    try:
        yield
    except CacheError as error:
        raise CacheError(
            f"--block cannot be used: {error}; give the documents with --file"
        ) from error


def _report(store: DiskBlocks, notify: Callable[[str], None]) -> None:
    if store.error is not None:
        notify(f"cannot save a block: {store.error}")
