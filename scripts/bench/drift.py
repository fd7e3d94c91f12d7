"""How far keys drift as turns are forgotten, and how that affects the next reply.

    python -m scripts.bench.drift kjv.txt [--dtype bfloat16]

A window of 1,280 tokens has a pinned turn and 128 short ones. Each round reads the next turn and
evicts the oldest. The error is measured on the first layer's keys, which depend only on the token
and its position, relative to keys rotated once in float32. Keys and values are stored in the dtype;
everything else is computed in float32, which is fast on a CPU. Perplexity is that of the next 64
tokens.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.bench.common import logprobs, parser, picked, show

# isort: split

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import Cache, make_cache
from mlxchat.cache.layers import windows
from mlxchat.cache.window import WindowCache
from mlxchat.models.load import load

DTYPES = {"bfloat16": mx.bfloat16, "float16": mx.float16, "float32": mx.float32}
WINDOW, KEEP, PINNED, TURN, TURNS, REPLY = 1_280, 4, 64, 8, 128, 64
ROUNDS = (1, 10, 100, 500)


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("text", type=Path)
    options_of.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    options = options_of.parse_args()
    model = load(options.model, offline=True, dtype="float32")
    ids = model.tokenizer.encode(options.text.read_text()[:200_000])
    rounds = ROUNDS[:2] if options.quick else ROUNDS
    for row in drift(model.network, ids, DTYPES[options.dtype], rounds):
        show(bench="drift", dtype=options.dtype, **row)


class Held:
    """A window that stores its keys and values in its own dtype."""

    def __init__(self, window: WindowCache, dtype: mx.Dtype) -> None:
        self.window, self.dtype = window, dtype

    @property
    def offset(self) -> int:
        return self.window.offset

    def make_mask(self, *arguments: Any, **options: Any) -> Any:
        return self.window.make_mask(*arguments, **options)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        held = self.window.update_and_fetch(keys.astype(self.dtype), values.astype(self.dtype))
        return held[0].astype(mx.float32), held[1].astype(mx.float32)


def run(network: nn.Module, cache: Cache, ids: mx.array, dtype: mx.Dtype) -> mx.array:
    """The logits of `ids: (B, T)`."""
    return network(ids, cache=[Held(window, dtype) for window in windows(cache)])


def drift(
    network: nn.Module, ids: np.ndarray, dtype: mx.Dtype, rounds: Sequence[int]
) -> Iterator[dict[str, float]]:
    """Yield the figures after each of `rounds`."""
    cache = make_cache(network, WINDOW, KEEP)
    front = KEEP + PINNED
    held = list(ids[: front + TURNS * TURN])
    _read(network, cache, held, dtype)
    position = len(held)
    for number in range(1, rounds[-1] + 1):
        cache.evict(front, front + TURN)
        del held[front : front + TURN]
        turn = ids[position : position + TURN]
        _read(network, cache, turn, dtype)
        held += list(turn)
        position += TURN
        if number in rounds:
            errors = _key_errors(network, cache, held, dtype)
            yield {
                "forgotten": number,
                "pinned": round(float(errors[KEEP:front].mean()), 5),
                "oldest": round(float(errors[front : front + TURN].mean()), 5),
                "newest": round(float(errors[-TURN:].mean()), 5),
                "perplexity": round(_perplexity(network, cache, ids[position:][:REPLY], dtype), 3),
            }


def _read(
    network: nn.Module, cache: Cache, ids: Sequence[int] | np.ndarray, dtype: mx.Dtype
) -> None:
    run(network, cache, mx.array(np.array(ids, np.int32))[None], dtype)
    mx.eval([layer.state for layer in cache])


def _key_errors(
    network: nn.Module, cache: Cache, held: Sequence[int], dtype: mx.Dtype
) -> np.ndarray:
    """Relative error of each token's key in the first layer, `(T,)`."""
    window = windows(cache)[0]
    keys, _, _ = window.entries
    assert keys is not None
    # Each token is a sequence of its own at position 0, so its key is never rotated.
    alone = make_cache(network, WINDOW, KEEP)
    run(network, alone, mx.array(np.array(held, np.int32))[:, None], dtype)
    unrotated, _, _ = windows(alone)[0].entries
    assert unrotated is not None
    rope = window.shift
    assert rope is not None
    exact = mx.fast.rope(
        unrotated[:, :, 0].swapaxes(0, 1)[None].astype(mx.float32),
        rope.dims,
        traditional=rope.traditional,
        base=rope.base,
        scale=rope.scale,
        offset=window.offset - len(held),
        freqs=rope.freqs,
    )
    off = mx.linalg.norm(keys.astype(mx.float32) - exact, axis=[1, 3])[0]
    return np.array(off / mx.linalg.norm(exact, axis=[1, 3])[0])


def _perplexity(network: nn.Module, cache: Cache, ids: np.ndarray, dtype: mx.Dtype) -> float:
    logits = run(network, cache.fork(), mx.array(ids)[None], dtype)[0, :-1]
    return math.exp(-picked(logprobs(logits), ids[1:]) / (len(ids) - 1))


if __name__ == "__main__":
    main()
