"""Attention of several rows to tokens that they share, which are stored once, and to their own.

`install_cascade` replaces the attention of a model's modules by one that does the same for every
cache without `shared` tokens.

Source: Hydragen (Juravsky et al., 2024), whose parts are combined exactly.
"""

from typing import Any

import mlx.core as mx
from mlx import nn

from mlxchat.cache.powers import (
    ATTENTION,
    LOG2_E,
    best,
    masked,
    plain_attention,
    replace_function,
    total,
    weights,
)
from mlxchat.cache.powers import attention as to_own
from mlxchat.cache.ring import Entries


def install_cascade(network: nn.Module) -> None:
    """Let the model's attention heed `shared`. Changes mlx-lm's modules, once, for all models."""
    replace_function(network, ATTENTION, attention, plain_attention, to_own)


def attention(  # noqa: PLR0917 (mlx-lm's)
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """mlx-lm's attention, of `queries: (B, H, L, D)` to `keys: (B, H_kv, S, D)`, and to the P
    tokens of `cache.shared`, if it has any. All rows see those, unless the mask has P + S columns.

    Raises ValueError for masks that are not boolean.
    """
    shared = getattr(cache, "shared", None)
    if shared is None:
        return to_own(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
    cache.attended = True
    return _cascade(queries * (scale * LOG2_E), Entries(keys, values), shared, mask, sinks)


def _cascade(
    queries: mx.array,
    own: Entries,
    shared: Entries,
    mask: mx.array | str | None,
    sinks: mx.array | None,
) -> mx.array:
    """Scores are logarithms to the base 2."""
    assert own.keys is not None
    assert own.values is not None
    assert shared.keys is not None
    assert shared.values is not None
    batch, heads, tokens, dim = queries.shape
    kv_heads, slots = own.keys.shape[1:3]
    by_group = (batch, kv_heads, heads // kv_heads, tokens)
    shared_mask, own_mask = _masks(mask, tokens, slots)
    groups = queries.reshape(batch, kv_heads, -1, dim)
    own_scores = (groups @ own.keys.swapaxes(-1, -2)).reshape(*by_group, slots)
    own_scores = masked(own_scores.astype(mx.float32), own_mask)
    # The queries of all rows as if they were those of one.
    together = groups.swapaxes(0, 1).reshape(1, kv_heads, -1, dim)
    scores = together @ shared.keys.swapaxes(-1, -2)
    scores = scores.reshape(kv_heads, batch, *by_group[2:], -1).astype(mx.float32)
    if shared_mask is not None:
        scores = masked(scores, shared_mask.swapaxes(0, 1))
    highest = mx.maximum(best(own_scores), best(scores).swapaxes(0, 1))
    if sinks is not None:
        sinks = sinks.astype(mx.float32).reshape(1, kv_heads, -1, 1, 1) * LOG2_E
        highest = mx.maximum(highest, sinks)
    own_seen = weights(own_scores, highest)
    seen = weights(scores, highest.swapaxes(0, 1))
    divisor = total(own_seen) + total(seen).swapaxes(0, 1)
    if sinks is not None:
        divisor = divisor + weights(sinks, highest)
    own_found = own_seen.astype(queries.dtype).reshape(batch, kv_heads, -1, slots) @ own.values
    found = seen.astype(queries.dtype).reshape(1, kv_heads, -1, scores.shape[-1]) @ shared.values
    found = found.reshape(kv_heads, batch, *by_group[2:], -1).swapaxes(0, 1)
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
    if mask.dtype != mx.bool_ or mask.ndim not in (2, 4) or (mask.ndim == 4 and mask.shape[1] > 1):
        raise ValueError("not a mask of ours")
    if mask.shape[-1] == slots:
        return None, mask
    return mask[..., :-slots], mask[..., -slots:]
