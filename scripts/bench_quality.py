"""Measure whether quality decays with length: perplexity of a text in a stream, at a fixed window.

    python -m scripts.bench_quality stream|gap TEXT [-m MODEL] [--tokens 40000] [--window 512]

TEXT is a file of real text, for example `bible -f gen1:1-deut34:12 > kjv.txt` with Debian's
package bible-kjv. `stream` compares our cache, mlx-lm's rotating cache and, at samples, the gold
standard: the last window of tokens computed from scratch. `gap` moves the cache's window forward
as if so many more tokens had been read, with our positions and with the gap left open.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.nn.losses import cross_entropy
from mlx_lm.models.cache import RotatingKVCache

from mlxchat.cache import make_cache
from mlxchat.models.load import load

KEEP, STEP = 4, 256
SAMPLES, STRETCH = 40, 4
GAPS = (0, 7_500, 12_000, 16_000, 64_000, 1_000_000, 20_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["stream", "gap"])
    parser.add_argument("text", type=Path)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=40_000)
    parser.add_argument("--window", type=int, default=512)
    options = parser.parse_args()
    model = load(options.model, offline=True)
    ids = model.tokenizer.encode(options.text.read_text())[: options.tokens]
    run = stream if options.what == "stream" else gap
    run(model.network, ids, options.window)


def losses(network: nn.Module, cache: list[Any], ids: np.ndarray) -> Iterator[float]:
    """Negative log-likelihood of each token after the first, read in steps of STEP tokens."""
    for start in range(0, len(ids) - 1, STEP):
        step = ids[start : start + STEP]
        targets = mx.array(ids[start + 1 : start + STEP + 1])
        logits = network(mx.array(step)[None], cache=cache)[0, : targets.size]
        loss = cross_entropy(logits.astype(mx.float32), targets)
        mx.eval(loss, [layer.state for layer in cache])
        values: Any = loss.tolist()
        yield from values


def perplexity(values: list[float]) -> float:
    return math.exp(sum(values) / len(values))


def stream(network: nn.Module, ids: np.ndarray, window: int) -> None:
    ours = list(losses(network, make_cache(network, window, KEEP), ids))
    layers: Any = network.layers
    rotating = [RotatingKVCache(max_size=window, keep=KEEP) for _ in layers]
    theirs = list(losses(network, rotating, ids))
    print("tokens    mlxchat  mlx-lm rotating  ratio")
    for start in range(0, len(ours), 1000):
        a, b = perplexity(ours[start : start + 1000]), perplexity(theirs[start : start + 1000])
        print(f"{start:6}  {a:8.2f}  {b:15.2f}  {a / b:5.2f}", flush=True)
    # The gold standard, at samples: each predicts a stretch of tokens with only the window before
    # it in view, computed from scratch.
    places = np.linspace(2 * window, len(ids) - STRETCH - 1, SAMPLES).astype(int)
    gold, same = [], []
    for place in places:
        for end in range(place, place + STRETCH):
            logits = network(mx.array(ids[end - window + 1 : end + 1])[None])[0, -1]
            target = mx.array(int(ids[end + 1]))
            loss: Any = cross_entropy(logits.astype(mx.float32), target).item()
            gold.append(loss)
        same += ours[place : place + STRETCH]
    print(
        f"at {SAMPLES} places of {STRETCH} tokens: ours {perplexity(same):.3f}, from scratch "
        f"{perplexity(gold):.3f}, ratio {perplexity(same) / perplexity(gold):.3f}"
    )


def gap(network: nn.Module, ids: np.ndarray, window: int) -> None:
    ids = ids[: 4 * window + 1024]
    before = make_cache(network, window, KEEP)
    list(losses(network, before, ids[: 4 * window]))
    for layer in before:
        layer._reanchor()
    print("tokens ahead  perplexity with our positions  with the gap left open")
    for distance in GAPS:
        figures = [
            perplexity(list(losses(network, cache, ids[4 * window :])))
            for cache in (ours_ahead(before, distance), with_gap(before, distance))
        ]
        print(f"{distance:12,}  {figures[0]:29.2f}  {figures[1]:22.2f}", flush=True)


def ours_ahead(before: list[Any], distance: int) -> list[Any]:
    """The cache as it would be: its offset goes round between half the limit and the limit."""
    cache = [layer.copy() for layer in before]
    for layer in cache:
        layer.total += distance
        half = layer.position_limit // 2
        ahead = distance if distance < half else half + distance % half - layer.offset
        layer._rebase(layer.offset + ahead)
    return cache


def with_gap(before: list[Any], distance: int) -> list[Any]:
    """The window at the text's own positions, the kept tokens where they were."""
    cache = [layer.copy() for layer in before]
    for layer in cache:
        kept, rest = layer.keys[..., :KEEP, :], layer.keys[..., KEEP:, :]
        layer.keys = mx.concatenate([kept, layer.shift(rest, distance)], axis=2)
        layer.offset += distance
        layer.shift = layer.position_limit = None
    return cache


if __name__ == "__main__":
    main()
