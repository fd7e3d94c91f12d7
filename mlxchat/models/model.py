"""A loaded model, what it sees of other machines, and the largest window that fits in memory."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.cache.build import kv_bytes_per_token, make_cache
from mlxchat.cache.layers import Cache, windows
from mlxchat.cache.positions import learned_positions
from mlxchat.errors import ModelBroken, ModelError, device_failures, first_line
from mlxchat.models.adapter import Adapter
from mlxchat.models.skeleton import held_bytes
from mlxchat.settings import DEFAULT_KEEP
from mlxchat.text.tokens import Tokenizer
from mlxchat.units import Notify, format_bytes

# Keys and values may take this share of the memory left by the weights.
CACHE_SHARE = 0.7

# A smaller window has no room for a question and its answer.
MIN_WINDOW = 512

# Windows are rounded down, so that a machine chooses the same size in every run.
WINDOW_MULTIPLE = 512

T = TypeVar("T")


class Alone:
    """This process, which has the whole model; or, as `Ranks`, one of several processes that run
    the same program, each with a shard of it. Rank 0 `leads`."""

    rank = 0
    size = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def at_rest(self) -> bool:
        """Whether all of them wait for the next message of a chat."""
        return True

    def lead(self, number: int) -> int:
        """Rank 0's number (≥ 0), on all ranks, which are alike until `done`, in a time limit."""
        return number

    def done(self) -> None:
        """What all ranks were to compute is computed."""

    def same(self, make: Callable[[], T], rank: int = 0) -> T:
        """What `make` returns on one rank, or the error that it raises there, on all ranks."""
        return make()

    def gather(self, number: int) -> list[int]:
        """Every rank's number, in rank order."""
        return [number]

    def failed(self, job: Callable[[], object]) -> list[int]:
        """The other ranks on which the job, which only they do, failed, for lack of a file."""
        return []

    def token(self, drawn: mx.array) -> mx.array:
        """Rank 0's token `(1,)`, lazily, on all ranks."""
        return drawn

    def losses(self) -> AbstractContextManager[None]:
        """All ranks compute in the body. Raises RanksError if one is lost."""
        return nullcontext()

    def turn(self) -> AbstractContextManager[None]:
        """All ranks do the body, and are at rest afterwards, unless it ends the program."""
        return nullcontext()


ALONE = Alone()


@dataclass(frozen=True, slots=True)
class Model:
    """A network ready to run, its tokenizer and its configuration.

    `dtype` is that of the activations, so of the keys and values. `context_length` is in tokens.
    `generation_config` and `config` are the contents of the model's files of those names.
    `adapter` is the one in the network, of which each of the `ranks` has a shard. `positions` is
    how many the model learned an embedding for, as GPT-2 did; None if it has no such table.
    """

    name: str
    network: nn.Module
    tokenizer: Tokenizer
    dtype: mx.Dtype
    context_length: int | None
    generation_config: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    adapter: Adapter | None = None
    ranks: Alone = ALONE
    positions: int | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # Found once: the walk takes a millisecond, and every row of a batch asks for it.
        object.__setattr__(self, "positions", learned_positions(self.network))

    def make_cache(self, max_kv_size: int | None = None, keep: int = DEFAULT_KEEP) -> Cache:
        """A cache with a window of `max_kv_size` tokens (None: unbounded). The first `keep` tokens
        are never evicted. Raises CacheError if the model does not support such a window,
        ModelBroken for a value of a wrong type in config.json, DeviceError if its code fails."""
        try:
            with device_failures():
                cache = make_cache(self.network, max_kv_size, keep)
        except TypeError as error:
            reason = f"config.json does not describe a cache: {first_line(error)}"
            raise ModelBroken(f"{self.name}: {reason}") from error
        if self.ranks.size > 1:
            # If the keys can be moved on some ranks only, they are moved on none.
            limit = min((window.position_limit or 0 for window in windows(cache)), default=0)
            movable = all(window.shift is not None for window in windows(cache))
            if any(len({*self.ranks.gather(each)}) > 1 for each in (limit, movable)):
                for window in windows(cache):
                    window.shift = window.position_limit = None
        return cache

    def free_memory_bytes(self) -> int:
        """The memory left after loading the weights, on the rank that has the least."""
        # Weights that are not evaluated yet will still take memory.
        unread_bytes = max(held_bytes(self.network) - platform.mlx_memory_bytes(), 0)
        return min(self.ranks.gather(max(platform.free_memory_bytes() - unread_bytes, 0)))


def automatic_window(model: Model, notify: Notify) -> int | None:
    """The trained context or the largest window that fits in memory, whichever is smaller.

    None if neither is limited: the context is unknown and no layer's cache grows. If MIN_WINDOW
    tokens do not fit, raises ModelError, or on macOS warns and returns MIN_WINDOW.
    """
    token_bytes = kv_bytes_per_token(model.network, model.dtype)
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
    if max_kv_size > (trained := model.context_length or max_kv_size):
        notify(f"a window of at most {trained:,} tokens is better: the model was trained with that")
    needed_bytes = max_kv_size * kv_bytes_per_token(model.network, model.dtype)
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
