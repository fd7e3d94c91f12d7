"""A loaded model, the interface to the other machines that share it, and the largest window that
fits in memory for it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.cache import Cache, kv_bytes_per_token, learned_positions, make_cache
from mlxchat.errors import ModelBroken, ModelError, device_failures, first_line
from mlxchat.models.adapter import Adapter
from mlxchat.models.skeleton import held_bytes
from mlxchat.settings import DEFAULT_KEEP
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import Tokenizer
from mlxchat.units import Notify, format_bytes

# Keys and values may take this share of the memory left by the weights.
CACHE_SHARE = 0.7

# A smaller window has no room for a question and its answer.
MIN_WINDOW = 512

# Windows are rounded down, so that a machine chooses the same size in every run.
WINDOW_MULTIPLE = 512


class StoredPrefixes(Protocol):
    """The prompt prefixes stored by this process; see `PrefixCache`."""

    limit_bytes: int

    def known(self, cache: Cache, ids: TokenIds, window: int | None) -> int: ...

    def fill(self, cache: Cache, ids: TokenIds, window: int | None) -> int: ...

    def recorder(
        self, cache: Cache, ids: TokenIds, cached: int, window: int | None
    ) -> Callable[[TokenIds], None] | None: ...


class Peers(Protocol):
    """The other ranks: processes that hold the rest of a model. Every call to the network, or to a
    cache from `make_cache`, runs on all of them. All methods raise RanksError if a rank is lost."""

    @property
    def shard(self) -> nn.Module:
        """This process's share of the network."""
        ...

    @property
    def size(self) -> int:
        """The number of processes, including this one."""
        ...

    def make_cache(self, max_kv_size: int | None, keep: int) -> Cache: ...

    def free_memory_bytes(self) -> int:
        """The free memory of the rank that has the least."""
        ...

    def save(self, cache: Cache, number: int) -> None:
        """Save every other rank's shard of `cache` as number `number`. Raises SnapshotError if one
        could not be saved."""
        ...

    def restore(self, cache: Cache, number: object) -> int:
        """Fill every other rank's shard of `cache`, already restored here, from the shards numbered
        `number`; returns the number. Raises SnapshotBroken if a rank fails; then `cache` must not
        be used."""
        ...

    def begin_prefix(
        self, prefixes: StoredPrefixes, cache: Cache, ids: TokenIds, window: int | None
    ) -> int:
        """Fill the empty `cache` with the prefix of `ids: (T,)` that every rank has stored, and
        store what follows as it is prefilled. Returns the prefix's length in tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Model:
    """A network ready to run, its tokenizer and its configuration.

    `dtype` is that of the activations, so of the keys and values. `context_length` is in tokens.
    `generation_config` and `config` are the contents of the model's files of those names.
    `adapter` is the one in the network. `peers` hold the rest of a network shared by several
    machines. `positions` is how many the model learned an embedding for, as GPT-2 did; None if it
    has no such table.
    """

    name: str
    network: nn.Module
    tokenizer: Tokenizer
    dtype: mx.Dtype
    context_length: int | None
    generation_config: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    adapter: Adapter | None = None
    peers: Peers | None = None
    positions: int | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # Found once: the walk takes a millisecond, and every row of a batch asks for it.
        object.__setattr__(self, "positions", learned_positions(self.shard))

    @property
    def shard(self) -> nn.Module:
        """This process's share of the network: all of it, unless there are peers."""
        return self.network if self.peers is None else self.peers.shard

    def make_cache(self, max_kv_size: int | None = None, keep: int = DEFAULT_KEEP) -> Cache:
        """A cache with a window of `max_kv_size` tokens (None: unbounded). The first `keep` tokens
        are never evicted. Raises CacheError if the model does not support such a window,
        ModelBroken for a value of a wrong type in config.json, DeviceError if its code fails."""
        if self.peers is not None:
            return self.peers.make_cache(max_kv_size, keep)
        try:
            with device_failures():
                return make_cache(self.network, max_kv_size, keep)
        except TypeError as error:
            reason = f"config.json does not describe a cache: {first_line(error)}"
            raise ModelBroken(f"{self.name}: {reason}") from error

    def free_memory_bytes(self) -> int:
        """The memory left after loading the weights, on the rank that has the least."""
        if self.peers is not None:
            return self.peers.free_memory_bytes()
        # Weights that are not evaluated yet will still take memory.
        unread_bytes = max(held_bytes(self.network) - platform.mlx_memory_bytes(), 0)
        return max(platform.free_memory_bytes() - unread_bytes, 0)


def automatic_window(model: Model, notify: Notify) -> int | None:
    """The trained context or the largest window that fits in memory, whichever is smaller.

    None if neither is limited: the context is unknown and no layer's cache grows. If MIN_WINDOW
    tokens do not fit, raises ModelError, or on macOS warns and returns MIN_WINDOW.
    """
    token_bytes = kv_bytes_per_token(model.shard, model.dtype)
    if token_bytes == 0:
        return model.context_length
    fitting = int(model.free_memory_bytes() * CACHE_SHARE) // token_bytes
    if model.context_length is not None and model.context_length <= fitting:
        return model.context_length
    if fitting < MIN_WINDOW:
        report_shortage(
            f"the weights leave memory for only {fitting} tokens ({token_bytes:,} bytes each): "
            "close other programs or choose a smaller model",
            notify,
        )
        return min(model.context_length or MIN_WINDOW, MIN_WINDOW)
    return fitting // WINDOW_MULTIPLE * WINDOW_MULTIPLE


def check_window(model: Model, max_kv_size: int | None, notify: Notify) -> None:
    """If a window of `max_kv_size` tokens does not fit, raise ModelError, or on macOS warn."""
    if max_kv_size is None:
        return
    needed_bytes = max_kv_size * kv_bytes_per_token(model.shard, model.dtype)
    free_bytes = model.free_memory_bytes()
    if needed_bytes > free_bytes:
        report_shortage(
            f"a window of {max_kv_size:,} tokens needs {format_bytes(needed_bytes)} with "
            f"this model, but only {format_bytes(free_bytes)} is free: use --max-kv-size "
            "auto or a smaller window",
            notify,
        )


def report_shortage(shortage: str, notify: Notify) -> None:
    """Raise ModelError, or on macOS, which moves memory to the disk, warn."""
    if platform.shortage_is_certain():
        raise ModelError(shortage)
    notify(shortage)
