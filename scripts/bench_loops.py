"""Measure how much of a long text repeats itself, and the perplexity of the rest.

    python -m scripts.bench_loops [-m smollm2] [--tokens 20000] [--temp 0] [--temp 0.7]
                                  [--multiplier 0.4]

Each text is generated in a window of 512 tokens, without an end: as the model writes it, and with
DRY. A token is repetition if the eight tokens ending in it are also
among the 2,048 before. A text loops from the token on with which 80% of the latest 512 are. The
perplexity is the model's own, without penalties, of the tokens that are no repetition, each with at
least 256 tokens before it. Prints one JSON line for each text.
"""

import argparse
import json
import math
from collections.abc import Sequence

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

import mlx.core as mx
import numpy as np

from mlxchat.engine.generate import Generation
from mlxchat.engine.repetition import LOOK_BACK, NGRAM, LoopDetector
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, SamplingSettings

PROMPT = "Write a very long story about a lighthouse keeper and the people who visit him."
WINDOW, KEEP, CONTEXT = 512, 4, 256


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--temp", type=float, action="append")
    parser.add_argument("--multiplier", type=float, default=0.4)
    parser.add_argument("--way", choices=("plain", "dry"), action="append")
    options = parser.parse_args()
    model = load(options.model, offline=True)
    for temp in options.temp or (0.0, 0.7):
        for way in options.way or ("plain", "dry"):
            multiplier = options.multiplier if way == "dry" else 0.0
            sampling = SamplingSettings(temp=temp, seed=1, dry_multiplier=multiplier)
            ids = write(model, sampling, options.tokens)
            print(json.dumps({"temp": temp, "way": way} | figures(model, ids)), flush=True)


def write(model: Model, sampling: SamplingSettings, tokens: int) -> list[int]:
    """The ids of a text of that many tokens."""
    generation = Generation(
        model,
        model.tokenizer.prompt(PROMPT).ids,
        model.make_cache(WINDOW, KEEP),
        sampling=sampling,
        settings=GenerationSettings(max_tokens=tokens, ignore_eos=True),
    )
    return [token.id for token in generation if token.id is not None]


def figures(model: Model, ids: Sequence[int]) -> dict[str, float]:
    detector, looping = LoopDetector(), 0
    for id_ in ids:
        detector.add(id_)
        looping += detector.looping
    repeated = repetitions(ids)
    losses = losses_of(model, ids)
    fresh = [loss for loss, again in zip(losses, repeated, strict=True) if loss and not again]
    return {
        "tokens": len(ids),
        "looping": round(looping / len(ids), 4),
        "repetition": round(sum(repeated) / len(ids), 4),
        "perplexity_of_rest": round(math.exp(sum(fresh) / max(len(fresh), 1)), 3),
    }


def repetitions(ids: Sequence[int]) -> list[bool]:
    latest: dict[tuple[int, ...], int] = {}
    found: list[bool] = []
    for end in range(len(ids)):
        ngram = tuple(ids[max(end - NGRAM + 1, 0) : end + 1])
        found.append(end - latest.get(ngram, -LOOK_BACK - 1) <= LOOK_BACK)
        if len(ngram) == NGRAM:
            latest[ngram] = end
    return found


def losses_of(model: Model, ids: Sequence[int]) -> list[float]:
    """The loss of each token; 0 for the first ones, which have too few before them."""
    losses = [0.0] * len(ids)
    for start in range(0, len(ids) - WINDOW + 1, WINDOW - CONTEXT):
        read = mx.array([ids[start : start + WINDOW]])
        logits = model.network(read)[0, CONTEXT - 1 : -1].astype(mx.float32)
        chosen = mx.take_along_axis(logits, read[0, CONTEXT:, None], axis=-1)[:, 0]
        of_each = np.array(mx.logsumexp(logits, axis=-1) - chosen).tolist()
        losses[start + CONTEXT : start + WINDOW] = of_each
    return losses


if __name__ == "__main__":
    main()
