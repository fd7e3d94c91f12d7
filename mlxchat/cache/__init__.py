"""Keys and values: what the model remembers. MLX only; no text, no files."""

from mlxchat.cache.build import check_bound, kv_bytes_per_token, make_cache, run_lazily
from mlxchat.cache.chunk import ChunkCache
from mlxchat.cache.layers import (
    bytes_held,
    evict,
    fork,
    positions_bounded,
    rewind,
    tokens_evicted,
    tokens_held,
)
from mlxchat.cache.positions import learned_positions
from mlxchat.cache.window import WindowCache

__all__ = [
    "ChunkCache",
    "WindowCache",
    "bytes_held",
    "check_bound",
    "evict",
    "fork",
    "kv_bytes_per_token",
    "learned_positions",
    "make_cache",
    "positions_bounded",
    "rewind",
    "run_lazily",
    "tokens_evicted",
    "tokens_held",
]
