"""How moving positions affects quality, and how long it takes, at a fixed window.

    python -m scripts.bench.positions gap|decode|cost kjv.txt

gap     perplexity after a simulated number of tokens, with our positions and with an open gap
decode  the same, one token at a time
cost    the share of decoding time that moving keys takes
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.bench.common import losses, parser, perplexity, show

# isort: split

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import Cache, make_cache
from mlxchat.cache.build import POSITION_LIMIT
from mlxchat.cache.window import REANCHOR_EVERY
from mlxchat.models.load import load

KEEP, STEP, WINDOW = 4, 256, 512
TOTALS, DECODED = (0, 16_000, 1_000_000, 10_000_000), 2_000
GAPS = (0, 7_500, 12_000, 16_000, 64_000, 1_000_000, 20_000_000)


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("what", choices=[run.__name__ for run in RUNS])
    options_of.add_argument("text", type=Path)
    options = options_of.parse_args()
    model = load(options.model, offline=True)
    ids = model.tokenizer.encode(options.text.read_text()[:200_000])
    window = 64 if options.quick else WINDOW
    after = 64 if options.quick else 1_024 if options.what == "gap" else DECODED
    run = next(run for run in RUNS if run.__name__ == options.what)
    run(model.network, ids[: 4 * window + after + 1], window)


def gap(network: nn.Module, ids: np.ndarray, window: int) -> None:
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


def decode(network: nn.Module, ids: np.ndarray, window: int) -> None:
    before = make_cache(network, window, KEEP)
    list(losses(network, before, ids[: 4 * window], STEP))
    for total in TOTALS:
        cache = ours_ahead(before, total)
        values = list(losses(network, cache, ids[4 * window :], step_size=1))
        show(bench="positions", earlier=total, decoded_perplexity=perplexity(values))


def cost(network: nn.Module, ids: np.ndarray, window: int) -> None:
    cache = make_cache(network, window, KEEP)
    list(losses(network, cache, ids[: 2 * window], STEP))
    list(losses(network, cache, ids[:2], step_size=1))
    token_s = _median_s(lambda: network(mx.array([[1]]), cache=cache))
    anchored_s = _median_s(lambda: _state_after(cache, lambda layer: layer._reanchor(tolerance=0)))
    rebased_s = _median_s(
        lambda: _state_after(cache, lambda layer: layer._rebase(layer.offset - 1))
    )
    show(
        bench="positions",
        token_s=token_s,
        moving_kept_s=anchored_s,
        share_moving_kept=anchored_s / REANCHOR_EVERY / token_s,
        moving_all_s=rebased_s,
        share_moving_all=rebased_s / (POSITION_LIMIT // 2) / token_s,
    )


def _state_after(cache: Cache, move: Callable[[Any], None]) -> list[mx.array]:
    forked = cache.fork()
    for layer in forked:
        layer._anchor -= 1
        move(layer)
    return [layer.keys for layer in forked]


def _median_s(run: Callable[[], Any], times: int = 50) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        mx.eval(run())
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


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


RUNS = (gap, decode, cost)

if __name__ == "__main__":
    main()
