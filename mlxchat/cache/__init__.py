"""Keys and values: what the model remembers. MLX only; no text, no files."""

from mlxchat.cache.block import (
    Block,
    BlockTaker,
    join_block,
    most_positions,
)
from mlxchat.cache.build import (
    check_bound,
    check_joinable,
    is_uniform,
    kv_bytes_per_token,
    make_cache,
    make_joinable,
    make_part,
    run_lazily,
)
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
    "Block",
    "BlockTaker",
    "ChunkCache",
    "WindowCache",
    "bytes_held",
    "check_bound",
    "check_joinable",
    "evict",
    "fork",
    "is_uniform",
    "join_block",
    "kv_bytes_per_token",
    "learned_positions",
    "make_cache",
    "make_joinable",
    "make_part",
    "most_positions",
    "positions_bounded",
    "rewind",
    "run_lazily",
    "tokens_evicted",
    "tokens_held",
]
