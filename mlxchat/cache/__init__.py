"""Keys and values: what the model remembers. MLX only; no text, no files."""

from mlxchat.cache.build import (
    bytes_held,
    kv_bytes_per_token,
    make_cache,
    tokens_evicted,
    tokens_held,
)
from mlxchat.cache.window import WindowCache

__all__ = [
    "WindowCache",
    "bytes_held",
    "kv_bytes_per_token",
    "make_cache",
    "tokens_evicted",
    "tokens_held",
]
