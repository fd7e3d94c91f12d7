"""One cache a layer for a whole model: which layer gets which window, and what a token costs.

It starts from what the model itself makes and replaces layer by layer, so that a model with
sliding windows or recurrent state keeps its structure. What cannot be bounded is refused by name.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import cache as mlx_lm_cache
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from mlxchat.cache.block import block_refusal
from mlxchat.cache.chunk import ChunkCache
from mlxchat.cache.layers import Cache, LayerCache, recurrent_states, windows
from mlxchat.cache.positions import KeyShift
from mlxchat.cache.trial import Stored, alike, find_key_shifts, without_sinks
from mlxchat.cache.window import WindowCache
from mlxchat.errors import CacheError
from mlxchat.settings import DEFAULT_KEEP
from mlxchat.wording import Field

# Offsets stay below this, or twice the window where that is more: the nearer to zero, the more
# precise are float32 angles, and a key is still moved back at most twice in its life.
POSITION_LIMIT = 2_048

# Modules of mlx-lm whose code takes more from its cache than any window can give.
UNBOUNDABLE = {
    "afm7": "its last layers take positions from the number of keys they are shown",
    "deepseek_v41": "it pools groups of tokens, in a cache of its own that grows with the text",
    "gpt2": "it has learned a vector for each position, and has no more of them",
    "gpt_bigcode": "it has learned a vector for each position, and has no more of them",
}

# Modules that group keys by their slot in the cache, so that the slots must be in temporal order.
IN_ORDER = {"minimax_m3_vl", "phi3small"}

# mlx-lm restores a saved cache by looking its classes up, by name, in this module.
for _class in (WindowCache, ChunkCache):
    setattr(mlx_lm_cache, _class.__name__, _class)


def make_cache(model: nn.Module, max_kv_size: int | None = None, keep: int = DEFAULT_KEEP) -> Cache:
    """Make one cache object a layer, to be passed to the model as `model(tokens, cache=…)`.

    `max_kv_size` is the window in tokens, the first `keep` included, or None for no bound. Layers
    with a sliding window of their own get ours of that size, or of `max_kv_size` if that is
    smaller; recurrent state is constant by nature and stays mlx-lm's. With a bound, positions are
    bounded too, on every layer whose keys can be shifted: see `positions_bounded`.

    Runs the model on two tokens. Raises CacheError naming the layer whose cache cannot be bounded.
    """
    cache = _make_layers(model, max_kv_size, keep)
    if max_kv_size is not None:
        _give_positions(model, windows(cache), max_kv_size)
    return cache


def is_uniform(model: nn.Module) -> bool:
    """Whether all layers remember in the same way, so that each tells what the others do."""
    layers = _make_layers(model, None, 0)
    return len({(type(layer), getattr(layer, "max_size", None)) for layer in layers}) == 1


def make_joinable(model: nn.Module, cache: Sequence[LayerCache]) -> None:
    """Find out how each window's keys can be shifted, so that blocks can be joined to the cache.

    A bounded cache knows already; otherwise this runs the model on two tokens. Raises CacheError
    where blocks cannot be joined.
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
    """Raise what `make_cache` would raise, without running the model: it needs no weights yet."""
    _make_layers(model, max_kv_size, keep)


def check_joinable(model: nn.Module) -> None:
    """Raise CacheError where blocks cannot be joined to what such a model remembers, without
    running it: it needs no weights yet."""
    if reason := block_refusal(_make_layers(model, None, 0)):
        raise CacheError(reason)


def _make_layers(model: nn.Module, max_kv_size: int | None, keep: int) -> Cache:
    if max_kv_size is not None and keep >= max_kv_size:
        raise CacheError(
            f"a window of {max_kv_size} tokens cannot keep {keep}: it needs room for one more"
        )
    module = _module_name(model)
    if max_kv_size is not None and module in UNBOUNDABLE:
        raise CacheError(
            Field("max_kv_size"),
            f" cannot bound a {module} model: {UNBOUNDABLE[module]}; run it with ",
            Field("max_kv_size", None),
        )
    layers = Cache(
        _bounded(f"layer {layer}", native, max_kv_size, keep)
        for layer, native in enumerate(_native_cache(model))
    )
    for window in windows(layers):
        window.in_order = module in IN_ORDER
    return layers


def _module_name(model: nn.Module) -> str:
    return type(model).__module__.rpartition(".")[2]


def _native_cache(model: nn.Module) -> list[LayerCache]:
    """What the model makes for itself, or a wrapper's language model does where it does not."""
    inner = getattr(model, "language_model", None)
    if not hasattr(model, "make_cache") and isinstance(inner, nn.Module):
        model = inner if hasattr(inner, "make_cache") else model
    return make_prompt_cache(model)


def _bounded(name: str, native: LayerCache, max_kv_size: int | None, keep: int) -> LayerCache:
    # By exact type: a subclass may hold something that a window would lose.
    kind = type(native)
    if kind is CacheList:
        inner = enumerate(native.caches)
        return CacheList(*(_bounded(f"{name}.{i}", each, max_kv_size, keep) for i, each in inner))
    if kind is KVCache:
        return WindowCache(max_kv_size, keep if max_kv_size is not None else 0)
    if kind is RotatingKVCache and native.keep == 0:
        return WindowCache(*_narrower(native.max_size, max_kv_size, keep))
    if kind is ChunkedKVCache:
        return ChunkCache(native.chunk_size, *_narrower(native.chunk_size, max_kv_size, keep))
    if kind is not ArraysCache and max_kv_size is not None:
        raise CacheError(
            f"this model's {name} keeps its past in a {kind.__name__}, which ",
            Field("max_kv_size"),
            " cannot bound; run it with ",
            Field("max_kv_size", None),
        )
    return native


def _narrower(native: int, max_kv_size: int | None, keep: int) -> tuple[int, int]:
    """Size of a window, and tokens to keep in it: none in one that the model was trained with."""
    if max_kv_size is None or native <= max_kv_size:
        return native, 0
    return max_kv_size, keep


def _give_positions(model: nn.Module, cache: Sequence[WindowCache], max_kv_size: int) -> None:
    """Give every window its shift, and to all the same limit, if all of them can be moved."""
    shifts = _find_shifts(model)
    for window, shift in zip(cache, shifts, strict=True):
        window.shift = shift
    # Chunks begin at multiples of their size, and must go on to.
    unit = max((w.chunk_size for w in cache if isinstance(w, ChunkCache)), default=1)
    # Some models read one layer's offset for all: they move back together or not at all.
    limit = None if None in shifts else _position_limit(cache, max(max_kv_size, unit))
    for window in cache:
        window.position_limit = limit
        window.position_unit = unit


def _find_shifts(model: nn.Module) -> list[KeyShift | None]:
    """The shift of each window; None for all if a recurrent layer's state depends on positions: it
    cannot be moved with the keys, and in half precision it makes later layers' keys differ too."""
    runs: list[Cache] = []

    def run_at(position: int) -> list[Stored]:
        runs.append(_run_token_at(model, position))
        return _stored(runs[-1])

    with without_sinks(model):
        shifts = find_key_shifts(model, run_at)
    states_stay = all(_same_states(runs[0], run) for run in runs[1:])
    return shifts if states_stay else [None] * len(shifts)


def _run_token_at(model: nn.Module, position: int) -> Cache:
    """What an unbounded cache holds when the model's first token is taken to be at `position`."""
    cache = _make_layers(model, None, 0)
    for window in windows(cache):
        window.offset = position
    model(mx.array([[1]]), cache=cache)
    mx.eval([layer.state for layer in cache])
    return cache


def _stored(cache: Sequence[LayerCache]) -> list[Stored]:
    return [None if window.empty() else window.keys_and_values() for window in windows(cache)]


def _same_states(near: Sequence[LayerCache], far: Sequence[LayerCache]) -> bool:
    """Whether recurrent layers know no positions: what they remember cannot be moved."""
    pairs = zip(recurrent_states(near), recurrent_states(far), strict=True)
    arrays = [pair for a, b in pairs for pair in zip(a.cache, b.cache, strict=True)]
    return all(alike(a, b) for a, b in arrays if a is not None and b is not None)


def _position_limit(cache: Sequence[WindowCache], tokens: int) -> int | None:
    """The limit for what spans so many tokens; None where a rope changes too early for that."""
    # Half, so that a prefill step has room as well.
    ends = [w.shift.limit // 2 for w in cache if w.shift is not None and w.shift.limit is not None]
    limit = POSITION_LIMIT
    while limit < 2 * tokens:
        limit *= 2
    limit = min([limit, *ends])
    return limit if limit >= 2 * tokens else None


def kv_bytes_per_token(model: nn.Module, dtype: mx.Dtype) -> int:
    """Bytes that one more token takes in all the layers whose cache grows with the text.

    Layers with a window of their own, or recurrent state, stop growing and are not counted.
    """
    growing = [window for window in windows(run_lazily(model)) if window.max_size is None]
    stored: list[Any] = [array for window in growing for array in (window.keys, window.values)]
    return sum(int(x.size) // x.shape[2] for x in stored if x is not None) * dtype.size


def run_lazily(model: nn.Module) -> Cache:
    """What an unbounded cache holds behind one token: shapes and dtypes, since nothing evaluates
    the graph that the model is built into."""
    cache = _make_layers(model, None, 0)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=cache)
    return cache
