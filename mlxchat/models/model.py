"""A model in memory, and what the other machines can be asked for if they hold it together."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.cache import Cache, make_cache
from mlxchat.models.skeleton import held_bytes
from mlxchat.settings import DEFAULT_KEEP
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import Tokenizer


class Spent(StrEnum):
    """What a token's time on several machines is spent on."""

    COMPUTING = "computing"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class TokenTiming:
    """`by_rank_s`: the median token of each rank, in seconds. `messages` and `message_bytes` are
    those of this one, per token."""

    by_rank_s: tuple[float, ...]
    messages: int
    message_bytes: int


class Prefixes(Protocol):
    """The beginnings of prompts that this process has stored; see `PrefixCache`."""

    limit_bytes: int

    def known(self, cache: Cache, ids: TokenIds, window: int | None) -> int: ...

    def fill(self, cache: Cache, ids: TokenIds, window: int | None) -> int: ...

    def recorder(
        self, cache: Cache, ids: TokenIds, cached: int, window: int | None
    ) -> Callable[[TokenIds], None] | None: ...


class Peers(Protocol):
    """The other ranks, processes that hold the rest of a model. What is done to its network and to
    a cache from `make_cache` happens on all of them. All methods raise RanksError if one is lost.
    """

    @property
    def shard(self) -> nn.Module:
        """What this process holds of the network."""
        ...

    @property
    def ranks(self) -> int:
        """How many processes hold it, this one included."""
        ...

    @property
    def pipelined(self) -> bool:
        """Whether each rank holds some of the layers, not a share of every layer."""
        ...

    def make_cache(self, max_kv_size: int | None, keep: int) -> Cache: ...

    def free_memory_bytes(self) -> int:
        """What the rank with the least memory to spare has free."""
        ...

    def save(self, cache: Cache, outdated: int | None) -> int:
        """Let every other rank save its shard of `cache`, and then delete the shard called
        `outdated`. Returns the number the shards are known by. Raises SnapshotError if one could
        not be saved."""
        ...

    def restore(self, cache: Cache, number: object) -> int:
        """Let every other rank fill its shard of `cache`, which is restored here, with the shard
        known by `number`, and return that. Raises SnapshotBroken if one cannot: then `cache` must
        not be used."""
        ...

    def begin_prefix(
        self, prefixes: Prefixes, cache: Cache, ids: TokenIds, window: int | None
    ) -> tuple[int, Callable[[TokenIds], None] | None]:
        """Fill the empty `cache` with the prefix of `ids: (T,)` that every rank has stored; return
        how many tokens that is, and what to call with the ids of each further step."""
        ...

    def time_token(self, cache: Cache, spent: Spent, tokens: int) -> TokenTiming:
        """Time a stage of so many tokens after what `cache` holds, which stays as it is."""
        ...


@dataclass(frozen=True, slots=True)
class Model:
    """A network ready to run, its tokenizer, and what its files say of it.

    `dtype` is that of its activations, so of its keys and values. `context_length` is in tokens.
    `generation_config` holds the sampling its makers recommend, as in the file of that name, and
    `config` the contents of config.json. `peers` hold the rest of a network that several machines
    share.
    """

    name: str
    network: nn.Module
    tokenizer: Tokenizer
    dtype: mx.Dtype
    context_length: int | None
    generation_config: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    peers: Peers | None = None

    @property
    def shard(self) -> nn.Module:
        """What this process holds of the network: all of it, unless there are peers."""
        return self.network if self.peers is None else self.peers.shard

    def make_cache(self, max_kv_size: int | None = None, keep: int = DEFAULT_KEEP) -> Cache:
        """A cache with a window of `max_kv_size` tokens, None for no bound, of which the first
        `keep` are never evicted. Raises CacheError if this model's past cannot be bounded so."""
        if self.peers is not None:
            return self.peers.make_cache(max_kv_size, keep)
        return make_cache(self.network, max_kv_size, keep)

    def free_memory_bytes(self) -> int:
        """What the weights leave free, on the rank with the least to spare."""
        if self.peers is not None:
            return self.peers.free_memory_bytes()
        # Weights that nothing has evaluated yet will still be read.
        unread_bytes = max(held_bytes(self.network) - platform.mlx_memory_bytes(), 0)
        return max(platform.free_memory_bytes() - unread_bytes, 0)
