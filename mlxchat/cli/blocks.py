"""Blocks as a command uses them: how they are to be read, and what is said of it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from mlx import nn

from mlxchat import paths
from mlxchat.blocks import BlockReader, does_not_fit
from mlxchat.cache import check_joinable, make_joinable
from mlxchat.cli.amounts import parse_bytes
from mlxchat.cli.setup import Setup
from mlxchat.errors import CacheError, UsageError
from mlxchat.generate import Cache
from mlxchat.models.load import Model
from mlxchat.settings import BlockSettings, Repair
from mlxchat.store.block_store import DiskBlocks
from mlxchat.store.prefix_cache import has_room
from mlxchat.tokens import Prompt


@dataclass(frozen=True, slots=True)
class BlockOptions:
    """The options as they were given; none for a prompt without blocks."""

    files: tuple[str, ...] = ()
    repair: Repair | None = None
    link: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], given: Collection[str]) -> "BlockOptions":
        """Those of the command, by the names of its parameters. What was not `given` on the command
        line is configured for whenever it may have a meaning.

        Raises UsageError for one that was given and has none.
        """
        files = tuple(options["block"] or ())
        for name in ("block_repair", "block_link"):
            if not files and name in given:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} says how blocks are read: give some with --block")
        repair, link = options["block_repair"], options["block_link"]
        if "block_link" not in given and repair not in (None, Repair.LINK):
            link = None
        return cls(files, repair, link)

    def check(self, setup: Setup, *, checkpoint: bool) -> None:
        """Raises UsageError for what makes no sense together."""
        if not self.files:
            return
        if checkpoint:
            raise UsageError(
                "--block and --checkpoint cannot be combined: documents of a run that is to be "
                "gone on with are given with -f"
            )
        if not setup.prefix_cache:
            raise UsageError(
                "--block keeps what it reads on the disk: leave --no-prefix-cache out, or where it "
                "is configured, add --prefix-cache"
            )
        self.settings()

    def settings(self) -> BlockSettings:
        """Raises UsageError for values that make no sense."""
        repair = self.repair or Repair.LINK
        if self.link is None:
            return BlockSettings(repair)
        if repair is not Repair.LINK:
            raise UsageError(f"--block-link has no meaning with --block-repair {repair}")
        number, percent = self.link.removesuffix("%"), self.link.endswith("%")
        try:
            if percent:
                return BlockSettings(repair, link_share=float(number) / 100)
            return BlockSettings(repair, link_tokens=int(number))
        except ValueError:
            raise UsageError(
                f"--block-link must be a number of tokens, or a share like 15%, got {self.link!r}"
            ) from None


def block_reader(
    setup: Setup,
    settings: BlockSettings,
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
    if settings.repair is Repair.FULL or not prompt.blocks:
        return None
    with refused():
        make_joinable(model.network, cache)
    if reason := does_not_fit(cache, len(prompt.ids), window):
        warn(f"blocks are read as other text is: {reason}")
        return None
    directory = paths.prefix_cache_dir()
    limit_bytes = parse_bytes(setup.prefix_cache_size, "--prefix-cache-size")
    store = DiskBlocks(directory, model, limit_bytes, has_room(directory, limit_bytes))
    stack.callback(_close, store, warn)
    return BlockReader(prompt, store, settings)


def check_model(network: nn.Module) -> None:
    """Raises CacheError where blocks cannot be joined, before any weights are loaded."""
    with refused():
        check_joinable(network)


@contextmanager
def refused() -> Iterator[None]:
    """A refusal, and what to do about it."""
    try:
        yield
    except CacheError as error:
        raise CacheError(f"--block cannot be used: {error}; give the documents with -f") from error


def _close(store: DiskBlocks, warn: Callable[[str], None]) -> None:
    store.close()
    if store.error is not None:
        warn(f"a block could not be kept: {store.error}")
