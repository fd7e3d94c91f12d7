"""Attention and SwiGLU as mlx-lm computes them, with powers of two instead of `exp`, and attention
of several rows to tokens that they share.

MLX's CPU backend on Linux has no vectorized `exp`: softmax and sigmoid take 2.5 to 3.5 times as
long as a power. mlx-lm's models call one function for each, which is replaced in their modules.

Source: Hydragen (Juravsky et al., 2024), whose parts of attention are combined exactly.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import activations, base

from mlxchat import platform
from mlxchat.cache.ring import Entries

LOG2_E = math.log2(math.e)

ATTENTION, SWIGLU = "scaled_dot_product_attention", "swiglu"

plain_attention: Any = base.scaled_dot_product_attention
plain_swiglu: Any = activations.swiglu

# For fewer scores, which is most tokens of a short text, MLX's single call is faster.
MIN_SCORES = 16_384

# Whether powers are faster here, and used. Found once, since every layer asks for every token.
_are_faster = False
_enabled = True


def install_powers(network: nn.Module) -> None:
    """Use powers in mlx-lm's modules if they are faster here. Changes them once, for all models."""
    global _are_faster  # noqa: PLW0603 (so are the functions that it switches)
    _are_faster = platform.exp_is_slow()
    if _are_faster:
        replace_function(network, ATTENTION, attention, plain_attention)
        replace_function(network, SWIGLU, swiglu, plain_swiglu)


def install_sharing(network: nn.Module) -> None:
    """Let all models' attention heed what rows share. Changes mlx-lm's modules, once."""
    replace_function(network, ATTENTION, attention_to_shared, plain_attention, attention)


def replace_function(network: nn.Module, name: str, new: Any, *known: Any) -> None:
    """Replace one of the `known` functions wherever the model's modules call it by this name."""
    for each in {type(module).__module__ for module in network.modules()}:
        module = sys.modules[each]
        if getattr(module, name, None) in known:
            setattr(module, name, new)


@contextmanager
def mlx_lms_own() -> Iterator[None]:
    """Compute as mlx-lm does during the body, for comparisons with it."""
    global _enabled  # noqa: PLW0603 (so are the functions that it switches)
    previous, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = previous


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """`silu(gate) * x`, of any shape."""
    if not _suits(gate, x):
        return plain_swiglu(gate, x)
    return gate * x / (1 + mx.power(2.0, gate * -LOG2_E))


def attention(  # noqa: PLR0917 (mlx-lm's)
    queries: mx.array,
    keys: Any,
    values: Any,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """mlx-lm's attention, of `queries: (B, H, L, D)` to `keys: (B, H_kv, S, D)`."""
    if (
        sinks is not None
        or not isinstance(keys, mx.array)
        or hasattr(cache, "bits")
        or not _suits(queries, keys, values)
        or queries.size // queries.shape[-1] * keys.shape[2] < MIN_SCORES
        or not _is_visibility(mask)
    ):
        return plain_attention(
            queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks
        )
    batch, heads, tokens, dim = queries.shape
    kv_heads, slots = keys.shape[1:3]
    if isinstance(mask, str):
        mask = mx.tri(tokens, slots, slots - tokens, dtype=mx.bool_) if tokens > 1 else None
    # The heads of a group, which have the same keys, as rows of one product.
    groups = (queries * (scale * LOG2_E)).reshape(batch, kv_heads, -1, dim)
    scores = (groups @ keys.swapaxes(-1, -2)).reshape(batch, kv_heads, -1, tokens, slots)
    scores = masked(scores, mask)
    seen = weights(scores, best(scores))
    found = (seen.reshape(batch, kv_heads, -1, slots) @ values).reshape(*seen.shape[:-1], -1)
    return (found / total(seen)).reshape(batch, heads, tokens, -1)


def _suits(*arrays: mx.array) -> bool:
    return _are_faster and _enabled and all(array.dtype == mx.float32 for array in arrays)


def _is_visibility(mask: mx.array | str | None) -> bool:
    """Whether the mask says what is visible, the same for all heads."""
    if not isinstance(mask, mx.array):
        return True
    return mask.dtype == mx.bool_ and (mask.ndim == 2 or (mask.ndim == 4 and mask.shape[1] == 1))


def attention_to_shared(  # noqa: PLR0917 (mlx-lm's)
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """As `attention`, and to the P tokens of `cache.shared`, if it has any, which are stored once.
    All rows see those, unless the mask has P + S columns.

    Raises ValueError for masks that are not boolean.
    """
    shared: Entries | None = getattr(cache, "shared", None)
    if shared is None:
        return attention(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
    cache.attended = True
    batch, heads, tokens, dim = queries.shape
    kv_heads, slots = keys.shape[1:3]
    shared_keys, shared_values = shared.pair
    shared_mask, own_mask = _masks(mask, tokens, slots)
    groups = (queries * (scale * LOG2_E)).reshape(batch, kv_heads, -1, dim)
    own = (groups @ keys.swapaxes(-1, -2)).reshape(batch, kv_heads, -1, tokens, slots)
    own = masked(own.astype(mx.float32), own_mask)
    # The queries of all rows as if they were those of one: rows and heads change places.
    together = groups.swapaxes(0, 1).reshape(1, kv_heads, -1, dim)
    scores = (together @ shared_keys.swapaxes(-1, -2)).astype(mx.float32)
    scores = scores.reshape(kv_heads, batch, -1, tokens, scores.shape[-1])
    scores = masked(scores, None if shared_mask is None else shared_mask.swapaxes(0, 1))
    highest = mx.maximum(best(own), best(scores).swapaxes(0, 1))
    if sinks is not None:
        sinks = sinks.astype(mx.float32).reshape(1, kv_heads, -1, 1, 1) * LOG2_E
        highest = mx.maximum(highest, sinks)
    own_seen, seen = weights(own, highest), weights(scores, highest.swapaxes(0, 1))
    divisor = total(own_seen) + total(seen).swapaxes(0, 1)
    if sinks is not None:
        divisor = divisor + weights(sinks, highest)
    own_found = own_seen.astype(queries.dtype).reshape(batch, kv_heads, -1, slots) @ values
    found = seen.astype(queries.dtype).reshape(1, kv_heads, -1, seen.shape[-1]) @ shared_values
    found = found.reshape(*seen.shape[:-1], -1).swapaxes(0, 1)
    found = (own_found.reshape(found.shape) + found) / divisor
    return found.astype(queries.dtype).reshape(batch, heads, tokens, -1)


def _masks(
    mask: mx.array | str | None, tokens: int, slots: int
) -> tuple[mx.array | None, mx.array | None]:
    """The masks of the shared tokens and of the own ones."""
    if mask is None:
        return None, None
    if isinstance(mask, str):
        if slots != tokens:
            raise ValueError("the rows hold more than these tokens")
        return None, mx.tri(tokens, dtype=mx.bool_)
    if not _is_visibility(mask):
        raise ValueError("not a mask of ours")
    return (None, mask) if mask.shape[-1] == slots else (mask[..., :-slots], mask[..., -slots:])


# Parts of a softmax of scores that are logarithms to the base 2.


def best(scores: mx.array) -> mx.array:
    return mx.max(scores, axis=-1, keepdims=True)


def weights(scores: mx.array, highest: mx.array) -> mx.array:
    return mx.power(2.0, scores - highest)


def total(seen: mx.array) -> mx.array:
    return mx.sum(seen, axis=-1, keepdims=True)


def masked(scores: mx.array, mask: mx.array | None) -> mx.array:
    """Scores `(…, G, L, S)` with a mask `(…, L, S)`. Finite, so that a row may see nothing here."""
    if mask is None:
        return scores
    by_group = mask if mask.ndim == 2 else mask[:, :, None]
    return mx.where(by_group, scores, mx.finfo(scores.dtype).min)
