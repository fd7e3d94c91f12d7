"""One cache a layer for a whole model: which layer gets which window, and what a token costs.

It starts from what the model itself makes and replaces layer by layer, so that a model with
sliding windows or recurrent state keeps its structure. What cannot be bounded is refused by name.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache, make_prompt_cache

from mlxchat.cache.positions import find_key_shifts
from mlxchat.cache.window import WindowCache
from mlxchat.errors import CacheError
from mlxchat.settings import DEFAULT_KEEP

LayerCache = Any

# Offsets stay below this, so that float32 angles stay precise. Doubled for very large windows, so
# that a key is moved back at most twice in its life.
POSITION_LIMIT = 65_536


def make_cache(
    model: nn.Module, max_kv_size: int | None = None, keep: int = DEFAULT_KEEP
) -> list[LayerCache]:
    """Make one cache object a layer, to be passed to the model as `model(tokens, cache=…)`.

    `max_kv_size` is the window in tokens, the first `keep` included, or None for no bound. Layers
    with a sliding window of their own get ours of that size, or of `max_kv_size` if that is
    smaller; recurrent state is constant by nature and stays mlx-lm's. With a bound, positions are
    bounded too, on every layer whose keys can be shifted: see `positions_bounded`.

    Runs the model on two tokens. Raises CacheError naming the layer whose cache cannot be bounded.
    """
    cache = _make_layers(model, max_kv_size, keep)
    if max_kv_size is not None and all(isinstance(layer, WindowCache) for layer in cache):
        _give_positions(model, cache, max_kv_size)
    return cache


def check_bound(model: nn.Module, max_kv_size: int | None, keep: int = DEFAULT_KEEP) -> None:
    """Raise what `make_cache` would raise, without running the model: it needs no weights yet."""
    _make_layers(model, max_kv_size, keep)


def positions_bounded(cache: Sequence[LayerCache]) -> bool:
    """Whether positions stay small however long the text: else they run on, and quality falls."""
    return all(layer.position_limit for layer in cache if isinstance(layer, WindowCache))


def _make_layers(model: nn.Module, max_kv_size: int | None, keep: int) -> list[LayerCache]:
    return [
        _bounded(layer, native, max_kv_size, keep)
        for layer, native in enumerate(make_prompt_cache(model))
    ]


def _give_positions(model: nn.Module, cache: list[LayerCache], max_kv_size: int) -> None:
    limit = POSITION_LIMIT
    while limit < 2 * max_kv_size:
        limit *= 2
    shifts = find_key_shifts(model, cache)
    for layer, shift in zip(cache, shifts, strict=True):
        layer.shift = shift
        # Some models read one layer's offset for all: they move back together or not at all.
        layer.position_limit = limit if all(shifts) else None


def _bounded(layer: int, native: LayerCache, max_kv_size: int | None, keep: int) -> LayerCache:
    # By exact type: a subclass may hold something that a window would lose.
    if type(native) is KVCache:
        return WindowCache(max_kv_size, keep if max_kv_size is not None else 0)
    if type(native) is RotatingKVCache and native.keep == 0:
        if max_kv_size is None or native.max_size <= max_kv_size:
            return WindowCache(native.max_size)
        return WindowCache(max_kv_size, keep)
    if type(native) is ArraysCache or max_kv_size is None:
        return native
    raise CacheError(
        f"this model's layer {layer} keeps its past in a {type(native).__name__}, which "
        "--max-kv-size cannot bound yet: run it with --max-kv-size none"
    )


def kv_bytes_per_token(model: nn.Module, dtype: mx.Dtype) -> int:
    """Bytes that one more token takes in all the layers whose cache grows with the text.

    Found by asking: the model is built into a graph on one token, which nothing evaluates, and the
    shapes of what its layers stored are read. Layers with a window of their own, or recurrent
    state, stop growing and are not counted.
    """
    cache = make_prompt_cache(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=cache)
    elements = sum(_elements_per_token(layer) for layer in cache if type(layer) is KVCache)
    return elements * dtype.size


def _elements_per_token(layer: LayerCache) -> int:
    keys, values = layer.state[:2]
    return sum(int(x.size) // x.shape[2] for x in (keys, values))


def tokens_held(cache: Sequence[LayerCache]) -> int:
    """Tokens in the fullest layer's window."""
    return max((layer.size() for layer in cache if isinstance(layer, WindowCache)), default=0)


def tokens_evicted(cache: Sequence[LayerCache]) -> int:
    """Tokens that even the layer with the widest window has evicted."""
    return min((layer.evicted for layer in cache if isinstance(layer, WindowCache)), default=0)


def bytes_held(cache: Sequence[LayerCache]) -> int:
    """Bytes allocated by all layers."""
    return sum(layer.nbytes for layer in cache)
