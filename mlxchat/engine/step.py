"""Computes one prefill step: whole or, on a CPU with several cores, in pieces, two at a time.

MLX's CPU backend computes most of attention on one core, so two streams compute at the same time:
a piece needs only the keys and values of the previous one, layer by layer. Pieces also spend less
time and memory on keys that the mask hides.
"""

import mlx.core as mx
from mlx import nn

from mlxchat.cache import Cache
from mlxchat.cache.layers import windows
from mlxchat.text.spans import TokenIds

PIECE = 128  # tokens

# Shorter steps are not divided: they take little time, and small products are inefficient.
MIN_DIVIDED = 64

Streams = tuple[mx.Stream | mx.ThreadLocalStream, ...]


def compute_step(network: nn.Module, cache: Cache, step: TokenIds, streams: Streams) -> None:
    """Put the tokens `step: (S,)` into the cache and evaluate its state.

    With several `streams`, usable in this thread, computes that many pieces at the same time.
    """
    size = _piece_size(cache, len(step), len(streams))
    pieces = [step[first : first + size] for first in range(0, len(step), size)]
    for first in range(0, len(pieces), len(streams)):
        for piece, stream in zip(pieces[first:], streams, strict=False):
            with mx.stream(stream):
                network(mx.array(piece)[None], cache=cache)
        mx.eval([layer.state for layer in cache])
        mx.clear_cache()


def _piece_size(cache: Cache, tokens: int, streams: int) -> int:
    """Tokens per piece of a step. A window narrower than the step would lose tokens before the
    caller can copy them, so that step is not divided."""
    narrowest = min((w.max_size for w in windows(cache) if w.max_size is not None), default=tokens)
    if streams == 1 or tokens < MIN_DIVIDED or narrowest < tokens:
        return tokens
    return min(PIECE, -(-tokens // streams))
