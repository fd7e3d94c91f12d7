"""The largest window that fits in memory for a loaded model."""

from mlxchat import platform
from mlxchat.cache import kv_bytes_per_token
from mlxchat.errors import ModelError
from mlxchat.models.model import Model
from mlxchat.units import Notify, format_bytes

# Keys and values may take this share of the memory left by the weights.
CACHE_SHARE = 0.7

# A smaller window has no room for a question and its answer.
MIN_WINDOW = 512

# Windows are rounded down, so that a machine chooses the same size in every run.
WINDOW_MULTIPLE = 512


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
