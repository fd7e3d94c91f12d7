"""Filters of logits that mlx-lm does not have: each sets those it excludes to minus infinity.

Excluded logits stay excluded, and the likeliest token is always kept.
"""

import mlx.core as mx


def keep_top_sigmas(logits: mx.array, n: float) -> mx.array:
    """Keep logits `(B, V)` within `n` standard deviations of the highest.

    The temperature does not change which ones are kept, unlike with top-p and min-p.
    Source: "Top-nσ: Not All Logits Are You Need", https://arxiv.org/abs/2411.07641.
    """
    wide = logits.astype(mx.float32)
    allowed = wide > -mx.inf
    count = allowed.sum(axis=-1, keepdims=True)
    mean = mx.where(allowed, wide, 0).sum(axis=-1, keepdims=True) / count
    squares = mx.where(allowed, mx.square(wide - mean), 0).sum(axis=-1, keepdims=True)
    low = wide.max(axis=-1, keepdims=True) - n * mx.sqrt(squares / count)
    return mx.where(wide < low, -mx.inf, logits)


def keep_typical(logits: mx.array, p: float) -> mx.array:
    """Keep the tokens whose surprise is nearest to the expected one, up to the total probability
    `p`, and the likeliest.

    Source: "Locally Typical Sampling", https://arxiv.org/abs/2202.00666.
    """
    wide = logits.astype(mx.float32)
    log_probs = wide - mx.logsumexp(wide, axis=-1, keepdims=True)
    probs = mx.exp(log_probs)
    entropy = -mx.where(probs > 0, probs * log_probs, 0).sum(axis=-1, keepdims=True)
    order = mx.argsort(mx.abs(log_probs + entropy), axis=-1)
    sorted_probs = mx.take_along_axis(probs, order, axis=-1)
    before = mx.cumsum(sorted_probs, axis=-1, inclusive=False)
    # A token is kept if those nearer to the expected surprise do not reach `p` yet.
    kept = mx.put_along_axis(mx.zeros(wide.shape, mx.bool_), order, before < p, axis=-1)
    is_likeliest = wide == wide.max(axis=-1, keepdims=True)
    return mx.where(kept | is_likeliest, logits, -mx.inf)
