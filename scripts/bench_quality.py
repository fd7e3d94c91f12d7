"""Measure how moving positions affects quality, and how long it takes, at a fixed window.

    python -m scripts.bench_quality gap|decode|cost TEXT [-m MODEL] [--tokens 40000] [--window 512]

TEXT is a file of real text, for example `bible -f gen1:1-deut34:12 > kjv.txt` with Debian's package
bible-kjv. `mlxchat bench stream` measures perplexity by position.

gap     perplexity after a simulated number of tokens, with our positions and with an open gap
decode  the same, one token at a time
cost    the share of decoding time that moving keys takes
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.bench.stream import losses, perplexity
from mlxchat.cache import Cache, make_cache
from mlxchat.cache.build import POSITION_LIMIT
from mlxchat.cache.window import REANCHOR_EVERY
from mlxchat.models.load import load

KEEP, STEP = 4, 256
TOTALS, DECODED = (0, 16_000, 1_000_000, 10_000_000), 2_000
GAPS = (0, 7_500, 12_000, 16_000, 64_000, 1_000_000, 20_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=[run.__name__ for run in RUNS])
    parser.add_argument("text", type=Path)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=40_000)
    parser.add_argument("--window", type=int, default=512)
    options = parser.parse_args()
    model = load(options.model, offline=True)
    ids = model.tokenizer.encode(options.text.read_text())[: options.tokens]
    run = next(run for run in RUNS if run.__name__ == options.what)
    run(model.network, ids, options.window)


def gap(network: nn.Module, ids: np.ndarray, window: int) -> None:
    ids = ids[: 4 * window + 1024]
    before = make_cache(network, window, KEEP)
    list(losses(network, before, ids[: 4 * window], STEP))
    for layer in before:
        layer._reanchor()
    print("tokens ahead  perplexity with our positions  with the gap left open")
    for distance in GAPS:
        figures = [
            perplexity(list(losses(network, cache, ids[4 * window :], STEP)))
            for cache in (ours_ahead(before, distance), with_gap(before, distance))
        ]
        print(f"{distance:12,}  {figures[0]:29.2f}  {figures[1]:22.2f}", flush=True)


def decode(network: nn.Module, ids: np.ndarray, window: int) -> None:
    before = make_cache(network, window, KEEP)
    list(losses(network, before, ids[: 4 * window], STEP))
    following = ids[4 * window : 4 * window + DECODED + 1]
    print("tokens before  perplexity of the next 2,000")
    for total in TOTALS:
        cache = ours_ahead(before, total)
        values = list(losses(network, cache, following, step_size=1))
        print(f"{total:13,}  {perplexity(values):10.3f}", flush=True)


def cost(network: nn.Module, ids: np.ndarray, window: int) -> None:
    cache = make_cache(network, window, KEEP)
    list(losses(network, cache, ids[: 2 * window], STEP))
    list(losses(network, cache, ids[:2], step_size=1))
    token_s = _median_s(lambda: network(mx.array([[1]]), cache=cache))
    anchored_s = _median_s(lambda: _state_after(cache, lambda layer: layer._reanchor(tolerance=0)))
    rebased_s = _median_s(
        lambda: _state_after(cache, lambda layer: layer._rebase(layer.offset - 1))
    )
    share = anchored_s / REANCHOR_EVERY / token_s, rebased_s / (POSITION_LIMIT // 2) / token_s
    print(
        f"a token {token_s * 1e3:.2f} ms; moving the kept {anchored_s * 1e3:.3f} ms, every "
        f"{REANCHOR_EVERY} tokens: {share[0]:.3%}; moving all back {rebased_s * 1e3:.2f} ms, every "
        f"{POSITION_LIMIT // 2:,}: {share[1]:.5%}"
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
