"""Perplexity by position in a long text, at a fixed window: of mlxchat, of mlx-lm's rotating cache
and, as the gold standard, of tokens whose window was computed from scratch.

    python -m scripts.bench.stream kjv.txt > stream.jsonl
    python -m scripts.bench.plot stream.jsonl scripts/charts

The text is, for example, `bible -f gen1:1-deut34:12 > kjv.txt` with Debian's package bible-kjv.
"""

import math
import statistics
from itertools import islice
from pathlib import Path
from typing import Any

from scripts.bench.common import losses, parser, perplexity, show

# isort: split

import numpy as np
from mlx import nn
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from mlxchat.cache.build import make_cache
from mlxchat.models.load import load
from mlxchat.settings import DEFAULT_KEEP

STRETCH = 64  # tokens recomputed at each place


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("text", type=Path)
    options = options_of.parse_args()
    model = load(options.model, offline=True)
    ids = model.tokenizer.encode(options.text.read_text())
    if options.quick:
        measure(model.network, ids[:769], part=128, window=128, step_size=64)
    else:
        measure(model.network, ids[:40_001], part=1_000, window=512, step_size=256)


def measure(network: nn.Module, ids: np.ndarray, part: int, window: int, step_size: int) -> None:
    """Both sides read a part before either reads the next."""
    ours = losses(network, make_cache(network, window), ids, step_size)
    theirs = losses(network, rotating_cache(network, window), ids, step_size)
    differences, gaps = [], []
    for start in range(0, len(ids) - 1, part):
        mine, others = (list(islice(each, part)) for each in (ours, theirs))
        figures = {"perplexity": perplexity(mine), "mlx_lm_perplexity": perplexity(others)}
        differences += [a - b for a, b in zip(mine, others, strict=True)]
        # In the middle, where a whole window precedes it.
        place = (len(mine) - STRETCH) // 2
        if place >= 0 and start + place + 1 + STRETCH // 2 >= window:
            same = mine[place : place + STRETCH]
            gold = recomputed(network, ids, start + place, window)
            gaps.append(statistics.fmean(same) - statistics.fmean(gold))
            figures["same_tokens_perplexity"] = perplexity(same)
            figures["recomputed_perplexity"] = perplexity(gold)
        show(bench="stream", from_token=start, **figures)
    ratio = perplexity(gaps)
    show(
        bench="stream",
        ratio_to_mlx_lm=perplexity(differences),
        places=len(gaps),
        ratio_to_recomputed=ratio,
        standard_error=ratio * statistics.stdev(gaps) / math.sqrt(len(gaps)),
    )


def rotating_cache(network: nn.Module, window: int) -> list[Any]:
    """The model's own cache, with its unbounded layers replaced as mlx-lm does for the models for
    which it honours a window."""
    return [
        RotatingKVCache(max_size=window, keep=DEFAULT_KEEP) if type(layer) is KVCache else layer
        for layer in make_prompt_cache(network)
    ]


def recomputed(network: nn.Module, ids: np.ndarray, place: int, window: int) -> list[float]:
    """Losses of the tokens after `place`, with a full window before each on average: they are read
    together, so the first sees half a stretch less than a window, and the last half more."""
    start = place + 1 + STRETCH // 2 - window
    read = ids[start : place + STRETCH + 1]
    return list(losses(network, None, read, len(read)))[-STRETCH:]


if __name__ == "__main__":
    main()
