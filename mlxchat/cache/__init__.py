"""The model's memory: keys and values, and which of them a token sees. MLX only; no text, no files.

Which tokens go in, and when, is for `engine` and `chat`. Read `window` first: the visible set; then
`ring` and `positions`. `build` makes the cache of a model.
"""

# ruff: noqa: F401  (what others import from here)

from mlxchat.cache.block import Block, BlockRecorder, join_block, max_positions
from mlxchat.cache.build import (
    check_bound,
    check_joinable,
    drafting,
    is_uniform,
    kv_bytes_per_token,
    make_cache,
    make_joinable,
    run_lazily,
)
from mlxchat.cache.layers import (
    Cache,
    ChunkCache,
    bytes_held,
    positions_bounded,
    tokens_evicted,
    tokens_held,
)
from mlxchat.cache.positions import learned_positions
from mlxchat.cache.window import WindowCache
