"""Perplexity after a simulated number of tokens, at a fixed window, with our positions and with an
open gap.

    python -m scripts.bench.positions kjv.txt
"""

from pathlib import Path
from typing import Any

from scripts.bench.common import losses, parser, perplexity, show

# isort: split

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache.build import make_cache
from mlxchat.models.load import load

KEEP, STEP, WINDOW = 4, 256, 512
GAPS = (0, 7_500, 12_000, 16_000, 64_000, 1_000_000, 20_000_000)


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("text", type=Path)
    options = options_of.parse_args()
    model = load(options.model, offline=True)
    ids = model.tokenizer.encode(options.text.read_text()[:200_000])
    window = 64 if options.quick else WINDOW
    after = 64 if options.quick else 1_024
    measure(model.network, ids[: 4 * window + after + 1], window)


def measure(network: nn.Module, ids: np.ndarray, window: int) -> None:
    before = make_cache(network, window, KEEP)
    list(losses(network, before, ids[: 4 * window], STEP))
    for layer in before:
        layer._reanchor()
    for distance in GAPS:
        ours, open_gap = (
            perplexity(list(losses(network, cache, ids[4 * window :], STEP)))
            for cache in (ours_ahead(before, distance), with_gap(before, distance))
        )
        show(bench="positions", earlier=distance, perplexity=ours, open_gap_perplexity=open_gap)


def ours_ahead(before: list[Any], distance: int) -> list[Any]:
    """The cache as it would be then: its offset cycles between half the limit and the limit."""
    cache = [layer.copy() for layer in before]
    for layer in cache:
        layer.total += distance
        half = layer.position_limit // 2
        ahead = distance if distance < half else half + distance % half - layer.offset
        layer._rebase(layer.offset + ahead)
    return cache


def with_gap(before: list[Any], distance: int) -> list[Any]:
    """The window at the text's own positions, with the kept tokens left at theirs."""
    cache = [layer.copy() for layer in before]
    for layer in cache:
        kept, rest = layer.keys[..., :KEEP, :], layer.keys[..., KEEP:, :]
        layer.keys = mx.concatenate([kept, layer.shift(rest, distance)], axis=2)
        layer.offset += distance
        layer.shift = layer.position_limit = None
    return cache


if __name__ == "__main__":
    main()
