"""Blocks as a command uses them: how they are to be read, and what is said of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from mlx import nn

from mlxchat import paths
from mlxchat.cache import Cache, check_joinable, make_joinable
from mlxchat.cli.amounts import parse_bytes
from mlxchat.cli.setup import Setup
from mlxchat.engine.blocks import BlockReader, join_refusal
from mlxchat.errors import CacheError, UsageError
from mlxchat.models.model import Model
from mlxchat.store.block_store import DiskBlocks
from mlxchat.store.prefix_cache import has_room
from mlxchat.text.tokens import Prompt
from mlxchat.wording import Message


def check_blocks(files: Sequence[str], setup: Setup, *, checkpoint: bool) -> None:
    """Raises UsageError for options that cannot be combined with blocks."""
    if not files:
        return
    if checkpoint:
        raise UsageError(
            "--block and --checkpoint cannot be combined: give the documents of a run that is to "
            "be resumed with -f"
        )
    if not setup.prefix_cache:
        raise UsageError(
            "--block keeps what it reads on the disk: drop --no-prefix-cache, or if it is "
            "configured, add --prefix-cache"
        )


def block_reader(
    setup: Setup,
    model: Model,
    cache: Cache,
    prompt: Prompt,
    window: int | None,
    warn: Callable[[str], None],
    stack: ExitStack,
) -> BlockReader | None:
    """What is to read the prompt into the empty cache; None for ordinary prefill.

    What is kept is let go of with `stack`. Raises CacheError naming why this model's blocks cannot
    be joined.
    """
    if not prompt.blocks:
        return None
    with refused():
        make_joinable(model.network, cache)
    if reason := join_refusal(cache, len(prompt.ids), window):
        warn(f"blocks are read as other text is: {reason}")
        return None
    directory = paths.prefix_cache_dir()
    limit_bytes = parse_bytes(setup.prefix_cache_size, "--prefix-cache-size")
    store = DiskBlocks(directory, model, limit_bytes, has_room(directory, limit_bytes))
    stack.callback(_close, store, warn)
    return BlockReader(prompt, store)


def check_model(network: nn.Module) -> None:
    """Raises CacheError if blocks cannot be joined, before any weights are loaded."""
    with refused():
        check_joinable(network)


@contextmanager
def refused() -> Iterator[None]:
    """A refusal, and what to do about it."""
    try:
        yield
    except CacheError as error:
        raise CacheError(
            "--block cannot be used: ", error, "; give the documents with -f"
        ) from error


def _close(store: DiskBlocks, warn: Callable[[str], None]) -> None:
    store.close()
    if store.error is not None:
        warn(Message("a block could not be kept: ", store.error))
