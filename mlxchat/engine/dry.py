"""DRY, "don't repeat yourself": penalizes a token that would extend a repetition, the more the
longer the repetition already is.

Source: p-e-w, https://github.com/oobabooga/text-generation-webui/pull/5677.
"""

from collections.abc import Callable, Collection

import mlx.core as mx

# Tokens in which a repetition is looked for, as many as for the detection of loops.
RANGE = 2048
# Longer repetitions are penalized like those of this length.
MAX_LENGTH = 32


def make_dry(
    multiplier: float, base: float, allowed_length: int, breakers: Collection[int] = ()
) -> Callable[[mx.array, mx.array], mx.array]:
    """Return a function of the latest tokens `(N,)` and logits `(1, V)` that subtracts
    `multiplier * base ** (length - allowed_length)` from the logit of each token that would extend
    a repetition of `allowed_length` tokens or more.

    No repetition includes one of the `breakers`, and none is penalized: the ends of turns, which
    are followed by the same tokens each time.
    """
    stopping = mx.array(sorted(breakers), mx.int32)

    def penalize(latest: mx.array, logits: mx.array) -> mx.array:
        latest = latest[-RANGE:]
        if len(latest) <= allowed_length:
            return logits
        lengths = _lengths(latest, stopping)
        penalties = mx.where(
            lengths >= allowed_length,
            multiplier * mx.power(base, (lengths - allowed_length).astype(mx.float32)),
            0.0,
        )
        following = latest[1:]
        total = mx.zeros(logits.shape[-1:]).at[following].maximum(penalties)
        if len(stopping):
            total[stopping] = 0.0
        return logits - total.astype(logits.dtype)

    return penalize


def _lengths(latest: mx.array, stopping: mx.array) -> mx.array:
    """For each token but the last `(N - 1,)`: how many tokens up to it equal those at the end."""
    most = min(MAX_LENGTH, len(latest) - 1)
    ends = mx.arange(len(latest) - 1)
    back = mx.arange(most)[:, None]
    places = ends - back
    own = latest[len(latest) - 1 - back]
    same = (latest[mx.maximum(places, 0)] == own) & (places >= 0)
    if len(stopping):
        same = same & ~(own == stopping).any(axis=-1, keepdims=True)
    return mx.cumprod(same.astype(mx.int32), axis=0).sum(axis=0)
