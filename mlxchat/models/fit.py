"""How large a window this machine's memory allows on a loaded model."""

from mlxchat import platform
from mlxchat.cache import kv_bytes_per_token
from mlxchat.distributed.leader import Leader
from mlxchat.errors import NotEnoughMemory
from mlxchat.models.load import Model
from mlxchat.units import format_bytes

# What keys and values may take of the memory that the weights left free.
CACHE_SHARE = 0.7

# Below this a chat cannot hold a question and its answer.
LEAST_WINDOW = 512

# Windows of a round size, so that the same machine comes to the same one from run to run.
WINDOW_MULTIPLE = 512


def automatic_window(model: Model) -> int | None:
    """The trained context or what fits in memory, whichever is less, in tokens.

    None where neither bounds it: the context is unknown and no layer's cache grows. Raises
    NotEnoughMemory where not even LEAST_WINDOW tokens fit.
    """
    token_bytes = kv_bytes_per_token(model.network, model.dtype)
    if token_bytes == 0:
        return model.context_length
    fitting = int(_free_memory_bytes(model) * CACHE_SHARE) // token_bytes
    if model.context_length is not None and model.context_length <= fitting:
        return model.context_length
    if fitting < LEAST_WINDOW:
        raise NotEnoughMemory(
            f"beside its weights the model has room for {fitting} tokens only, at {token_bytes:,} "
            "bytes each: close other programs or choose a smaller model"
        )
    return fitting // WINDOW_MULTIPLE * WINDOW_MULTIPLE


def check_window(model: Model, max_kv_size: int | None) -> None:
    """Raise NotEnoughMemory where a window of `max_kv_size` tokens cannot fit."""
    if max_kv_size is None:
        return
    needed_bytes = max_kv_size * kv_bytes_per_token(model.network, model.dtype)
    free_bytes = _free_memory_bytes(model)
    if needed_bytes > free_bytes:
        raise NotEnoughMemory(
            f"a window of {max_kv_size:,} tokens takes {format_bytes(needed_bytes)} on this model "
            f"and {format_bytes(free_bytes)} are free: use --max-kv-size auto or a smaller one"
        )


def _free_memory_bytes(model: Model) -> int:
    """On this machine, or on that of all the ranks' which has least."""
    network = model.network
    if isinstance(network, Leader):
        return network.free_memory_bytes()
    return platform.free_memory_bytes()
