"""Keys and values: what the model remembers. MLX only; no text, no files."""

from mlxchat.cache.build import (
    bytes_held,
    check_bound,
    kv_bytes_per_token,
    make_cache,
    positions_bounded,
    tokens_evicted,
    tokens_held,
)
from mlxchat.cache.window import WindowCache

__all__ = [
    "WindowCache",
    "bytes_held",
    "check_bound",
    "kv_bytes_per_token",
    "make_cache",
    "positions_bounded",
    "tokens_evicted",
    "tokens_held",
]
