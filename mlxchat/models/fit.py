"""How large a window this machine's memory allows on a loaded model."""

from mlxchat import platform
from mlxchat.cache import kv_bytes_per_token
from mlxchat.errors import NotEnoughMemory
from mlxchat.models.model import Model
from mlxchat.progress import Notify
from mlxchat.units import format_bytes
from mlxchat.wording import Field, Message

# What keys and values may take of the memory that the weights left free.
CACHE_SHARE = 0.7

# Below this a chat cannot hold a question and its answer.
LEAST_WINDOW = 512

# Windows of a round size, so that the same machine comes to the same one from run to run.
WINDOW_MULTIPLE = 512


def automatic_window(model: Model, notify: Notify) -> int | None:
    """The trained context or what fits in memory, whichever is less, in tokens.

    None if neither bounds it: the context is unknown and no layer's cache grows. If not even
    LEAST_WINDOW tokens fit, raises NotEnoughMemory, or on macOS warns and returns that many.
    """
    token_bytes = kv_bytes_per_token(model.shard, model.dtype)
    if token_bytes == 0:
        return model.context_length
    fitting = int(model.free_memory_bytes() * CACHE_SHARE) // token_bytes
    if model.context_length is not None and model.context_length <= fitting:
        return model.context_length
    if fitting < LEAST_WINDOW:
        _report_shortage(
            f"after the weights, memory has room for only {fitting} tokens, at {token_bytes:,} "
            "bytes each: close other programs or choose a smaller model",
            notify,
        )
        return min(model.context_length or LEAST_WINDOW, LEAST_WINDOW)
    return fitting // WINDOW_MULTIPLE * WINDOW_MULTIPLE


def check_window(model: Model, max_kv_size: int | None, notify: Notify) -> None:
    """If a window of `max_kv_size` tokens does not fit, raise NotEnoughMemory, or on macOS warn."""
    if max_kv_size is None:
        return
    needed_bytes = max_kv_size * kv_bytes_per_token(model.shard, model.dtype)
    free_bytes = model.free_memory_bytes()
    if needed_bytes > free_bytes:
        _report_shortage(
            Message(
                f"a window of {max_kv_size:,} tokens takes {format_bytes(needed_bytes)} on this "
                f"model and {format_bytes(free_bytes)} are free: use ",
                Field("max_kv_size", "auto"),
                " or a smaller window",
            ),
            notify,
        )


def _report_shortage(shortage: str, notify: Notify) -> None:
    if platform.shortage_is_certain():
        raise NotEnoughMemory(shortage)
    notify(shortage)
