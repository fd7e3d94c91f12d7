"""Applies bit masks of allowed tokens to logits."""

import mlx.core as mx
import numpy as np


def apply_mask(logits: mx.array, mask: np.ndarray) -> mx.array:
    """Set the logits `(B, V)` of tokens that are not allowed to minus infinity.

    `mask` is uint32 `(W,)` for all rows or `(B, W)`, bit `id % 32` of word `id // 32`. Tokens
    beyond the mask, which are padding of the network's output, are not allowed.
    """
    size = logits.shape[-1]
    bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), axis=-1, bitorder="little")
    bits = bits[..., :size]
    missing = size - bits.shape[-1]
    if missing:
        bits = np.concatenate([bits, np.zeros((*bits.shape[:-1], missing), np.uint8)], axis=-1)
    allowed = mx.array(bits.view(bool))
    return mx.where(allowed, logits, mx.array(-float("inf"), logits.dtype))
