"""Build a model's cache: which layer gets which window, and the memory a token takes.

Starts from the cache that the model itself makes and replaces it layer by layer, so that sliding
windows and recurrent state keep their structure. What cannot be bounded is refused by name.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from mlxchat.cache.block import block_refusal
from mlxchat.cache.layers import (
    Cache,
    ChunkCache,
    LayerCache,
    draft_refusal,
    recurrent_states,
    windows,
)
from mlxchat.cache.positions import KeyShift
from mlxchat.cache.trial import Stored, alike, find_key_shifts, without_sinks
from mlxchat.cache.window import WindowCache
from mlxchat.errors import CacheError
from mlxchat.settings import DEFAULT_KEEP

# Offsets stay below this, or below twice the window if that is more. Angles in float32 are more
# precise near zero, and a key still moves back at most twice in its life.
POSITION_LIMIT = 2_048

# mlx-lm modules that need more from their cache than a window can provide.
UNBOUNDABLE = {
    "afm7": "its last layers derive positions from the number of keys they see",
    "deepseek_v41": "it pools tokens in groups, in a separate cache that grows with the text",
    "gpt2": "it uses learned position embeddings, which run out",
    "gpt_bigcode": "it uses learned position embeddings, which run out",
}

# Modules that group keys by their slot in the cache, and so need temporal order.
IN_ORDER = {"minimax_m3_vl", "phi3small"}


def make_cache(model: nn.Module, max_kv_size: int | None = None, keep: int = DEFAULT_KEEP) -> Cache:
    """Make one cache object per layer, for `model(tokens, cache=…)`.

    `max_kv_size` is the window in tokens, including the first `keep`, or None for no bound. Layers
    with a sliding window get one of ours, of their own size or of `max_kv_size` if that is smaller.
    Recurrent state has a constant size and remains mlx-lm's. With a bound, positions are bounded
    too if all layers' keys can be shifted: see `positions_bounded`.

    Runs the model on two tokens. Raises CacheError naming the layer whose cache cannot be bounded.
    """
    cache = _make_layers(model, max_kv_size, keep)
    if max_kv_size is not None:
        _give_positions(model, windows(cache), max_kv_size)
    return cache


def drafting(model: nn.Module) -> str:
    """Whether tokens can be drafted, in words: "works", or why not. Needs no weights."""
    layers = _make_layers(model, None, 0)
    if refusal := draft_refusal(layers):
        return f"off: {refusal}"
    if recurrent_states(layers):
        return "works; recurrent layers compute accepted tokens again"
    return "works"


def is_uniform(model: nn.Module) -> bool:
    """Whether all layers have the same kind of cache, so that one layer represents all."""
    layers = _make_layers(model, None, 0)
    return len({(type(layer), getattr(layer, "max_size", None)) for layer in layers}) == 1


def make_joinable(model: nn.Module, cache: Sequence[LayerCache]) -> None:
    """Find each window's key shift, so that blocks can be joined to the cache.

    Bounded caches have their shifts already; otherwise this runs the model on two tokens. Raises
    CacheError if blocks cannot be joined.
    """
    if reason := block_refusal(cache):
        raise CacheError(reason)
    if all(window.shift is not None for window in windows(cache)):
        return
    shifts = _find_shifts(model)
    if None in shifts:
        raise CacheError("this model's keys cannot be shifted to other positions")
    for window, shift in zip(windows(cache), shifts, strict=True):
        window.shift = shift


def check_bound(model: nn.Module, max_kv_size: int | None, keep: int = DEFAULT_KEEP) -> None:
    """Raise what `make_cache` would raise, without running the model: no weights needed."""
    _make_layers(model, max_kv_size, keep)


def joining_refusal(model: nn.Module) -> str | None:
    """Why blocks cannot be joined to its cache; None if they may be. Needs no weights."""
    return block_refusal(_make_layers(model, None, 0))


def _make_layers(model: nn.Module, max_kv_size: int | None, keep: int) -> Cache:
    if max_kv_size is not None and not 0 <= keep < max_kv_size:
        raise CacheError(
            f"a window of {max_kv_size} tokens cannot keep {keep}: it needs room for one more"
        )
    module = type(model).__module__.rpartition(".")[2]
    if max_kv_size is not None and module in UNBOUNDABLE:
        raise CacheError(
            f"--max-kv-size cannot bound a {module} model: {UNBOUNDABLE[module]}; run "
            "it with --max-kv-size none"
        )
    layers = Cache(
        _bounded(f"layer {layer}", native, max_kv_size, keep)
        for layer, native in enumerate(_native_cache(model))
    )
    for window in windows(layers):
        window.in_order = module in IN_ORDER
    return layers


def _native_cache(model: nn.Module) -> list[LayerCache]:
    """The cache that the model, or the language model it wraps, makes for itself."""
    inner = getattr(model, "language_model", None)
    if not hasattr(model, "make_cache") and isinstance(inner, nn.Module):
        model = inner if hasattr(inner, "make_cache") else model
    return make_prompt_cache(model)


def _bounded(name: str, native: LayerCache, max_kv_size: int | None, keep: int) -> LayerCache:
    # The exact type: a subclass may hold something that a window would lose.
    kind = type(native)
    if kind is CacheList:
        inner = enumerate(native.caches)
        return CacheList(*(_bounded(f"{name}.{i}", each, max_kv_size, keep) for i, each in inner))
    if kind is KVCache or (kind is RotatingKVCache and native.max_size is None):
        return WindowCache(max_kv_size, keep if max_kv_size is not None else 0)
    if kind is RotatingKVCache and native.keep == 0:
        return WindowCache(*_narrower(native.max_size, max_kv_size, keep))
    if kind is ChunkedKVCache:
        return ChunkCache(native.chunk_size, *_narrower(native.chunk_size, max_kv_size, keep))
    if kind is not ArraysCache and max_kv_size is not None:
        raise CacheError(
            f"this model's {name} uses a {kind.__name__}, which --max-kv-size cannot "
            "bound; run it with --max-kv-size none"
        )
    return native


def _narrower(native: int, max_kv_size: int | None, keep: int) -> tuple[int, int]:
    """The window's size and kept tokens: none are kept in a window the model was trained with.
    Raises CacheError if that holds no token."""
    if native < 1:
        raise CacheError(f"the model's own window is {native} tokens: correct its config.json")
    if max_kv_size is None or native <= max_kv_size:
        return native, 0
    return max_kv_size, keep


def _give_positions(model: nn.Module, cache: Sequence[WindowCache], max_kv_size: int) -> None:
    """Give every window its shift and, if all can be shifted, a common position limit."""
    shifts = _find_shifts(model)
    for window, shift in zip(cache, shifts, strict=True):
        window.shift = shift
    # Chunks begin at multiples of their size, before and after a move.
    unit = max((w.chunk_size for w in cache if isinstance(w, ChunkCache)), default=1)
    # Some models read one layer's offset for all layers, so all move back together or none does.
    limit = None if None in shifts else _position_limit(cache, max(max_kv_size, unit))
    for window in cache:
        window.position_limit = limit
        window.position_unit = unit


def _find_shifts(model: nn.Module) -> list[KeyShift | None]:
    """Each window's key shift; all None if the state of a recurrent layer depends on positions.

    Such state cannot be moved with the keys, and in half precision it changes later layers' keys.
    """
    runs: list[Cache] = []

    def run_at(position: int) -> list[Stored]:
        runs.append(_run_token_at(model, position))
        found = windows(runs[-1])
        return [None if window.empty() else window.keys_and_values() for window in found]

    with without_sinks(model):
        shifts = find_key_shifts(model, run_at)
    states_stay = all(_same_states(runs[0], run) for run in runs[1:])
    return shifts if states_stay else [None] * len(shifts)


def _run_token_at(model: nn.Module, position: int) -> Cache:
    """Run one token at `position` and return the unbounded cache."""
    cache = _make_layers(model, None, 0)
    for window in windows(cache):
        window.offset = position
    model(mx.array([[1]]), cache=cache)
    mx.eval([layer.state for layer in cache])
    return cache


def _same_states(near: Sequence[LayerCache], far: Sequence[LayerCache]) -> bool:
    """Whether the recurrent states of two runs at different positions are the same."""
    pairs = zip(recurrent_states(near), recurrent_states(far), strict=True)
    arrays = [pair for a, b in pairs for pair in zip(a.cache, b.cache, strict=True)]
    return all(alike(a, b) for a, b in arrays if a is not None and b is not None)


def _position_limit(cache: Sequence[WindowCache], tokens: int) -> int | None:
    """The position limit for a span of `tokens`; None if a rope changes too early for it."""
    # Half, to leave room for a prefill step.
    ends = [w.shift.limit // 2 for w in cache if w.shift is not None and w.shift.limit is not None]
    limit = POSITION_LIMIT
    while limit < 2 * tokens:
        limit *= 2
    limit = min([limit, *ends])
    return limit if limit >= 2 * tokens else None


def kv_bytes_per_token(model: nn.Module, dtype: mx.Dtype) -> int:
    """Bytes that each further token takes in the layers whose cache grows with the text.

    Layers with their own window or with recurrent state stop growing and are not counted.
    """
    growing = [window for window in windows(run_lazily(model)) if window.max_size is None]
    stored: list[Any] = [array for window in growing for array in (window.keys, window.values)]
    return sum(int(x.size) // x.shape[2] for x in stored if x is not None) * dtype.size


def run_lazily(model: nn.Module) -> Cache:
    """An unbounded cache after one token, lazy: only shapes and dtypes matter, never evaluated."""
    cache = _make_layers(model, None, 0)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=cache)
    return cache
