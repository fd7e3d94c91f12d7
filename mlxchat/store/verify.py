"""Measures how far a restored state is from one computed from scratch from the same tokens.

If turns were evicted and keys shifted, the two differ: later tokens have seen the evicted ones.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import Cache
from mlxchat.engine.loops import prefill
from mlxchat.engine.pace import Pace
from mlxchat.progress import Progress
from mlxchat.settings import CacheSettings
from mlxchat.text.spans import TokenIds


@dataclass(frozen=True, slots=True)
class Agreement:
    """Compares two states' predictions after each of `tokens` tokens: mean Kullback-Leibler
    divergence of the first from the second, in nats; largest difference of two logits; and how
    often both have the same top choice."""

    tokens: int
    kl: float
    logit_difference: float
    same_choice: int


def compare(
    network: nn.Module,
    restored: Cache,
    empty: Cache,
    held: TokenIds,
    probe: TokenIds,
    *,
    settings: CacheSettings,
    on_progress: Progress | None = None,
) -> Agreement:
    """Prefill `held: (T,)` into a fork of `empty`, let both states read `probe: (N,)`, compare.

    `on_progress` counts tokens of `held`.
    """
    fresh = empty.fork()
    prefill(
        network,
        fresh,
        held,
        step_size=settings.max_step_size,
        pace=Pace.of(network, settings),
        on_progress=on_progress,
    )
    tokens = mx.array(probe)[None]
    a, b = (_logits(network, cache.fork(), tokens) for cache in (restored, fresh))
    log_a, log_b = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (a, b))
    return Agreement(
        tokens=len(probe),
        kl=float((np.exp(log_b) * (log_b - log_a)).sum(axis=-1).mean()),
        logit_difference=float(np.abs(a - b).max()),
        same_choice=int((a.argmax(axis=-1) == b.argmax(axis=-1)).sum()),
    )


def _logits(network: nn.Module, cache: Cache, tokens: mx.array) -> np.ndarray:
    return np.array(network(tokens, cache=cache)[0].astype(mx.float32), dtype=np.float64)
