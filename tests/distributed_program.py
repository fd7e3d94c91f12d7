"""Run on all ranks: the output of one process for each model, and of the ranks together.

    python -m tests.distributed_program PIPELINE MODEL…

Rank 0 prints one JSON line per model.
"""

import json
import sys
from pathlib import Path
from typing import Any

# isort: split

import mlx.core as mx
import numpy as np

from mlxchat.distributed import Ranks
from mlxchat.distributed.load import load_shared
from mlxchat.engine.generate import generate
from mlxchat.engine.prefill import prefill
from mlxchat.engine.reply import Reply
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from mlxchat.models.resolve import ResolvedModel
from mlxchat.request import Setup
from mlxchat.settings import GenerationSettings, SamplingSettings

PROMPT = np.frombuffer(b"It was a dark and stormy night; the rain fell in torrents.", np.uint8)
WINDOW, KEEP, STEP = 24, 4, 16


def main() -> None:
    pipeline, directories = sys.argv[1] == "pipeline", sys.argv[2:]
    mx.set_default_device(mx.cpu)
    ranks = Ranks.join()
    for directory in directories:
        found = ResolvedModel(directory, Path(directory))
        setup = Setup(directory, device="cpu", dtype="float32", pipeline=pipeline, offline=True)
        together = load_shared(ranks, setup, found, print, None)
        alone = load_directory(Path(directory), directory, dtype="float32", notify=print)
        facts = {"alone": _facts(alone), "together": _facts(together)}
        if ranks.leads:
            print(json.dumps(facts), flush=True)
    ranks.stop()


def _facts(model: Model) -> dict[str, Any]:
    return {
        "greedy": _said(model, SamplingSettings(temp=0.0)),
        "drawn": _said(model, SamplingSettings(temp=1.0, seed=7)),
        "logits": _logits(model),
    }


def _said(model: Model, sampling: SamplingSettings) -> list[int | None]:
    cache = model.make_cache(WINDOW, KEEP)
    settings = GenerationSettings(max_tokens=12, ignore_eos=True)
    reply = Reply(
        model,
        PROMPT.astype(np.int32),
        cache,
        sampling=sampling,
        settings=settings,
    )
    return [token.id for token in generate(reply, step_size=STEP) if token.id is not None]


def _logits(model: Model) -> list[list[float]]:
    """Logits of a next token after each operation on a cache."""
    network, ids = model.network, PROMPT.astype(np.int32)
    cache = model.make_cache(WINDOW, KEEP)
    seen: list[list[float]] = []

    def look(cache: Any) -> None:
        seen.append(network(mx.array([[65]]), cache=cache)[0, -1].tolist())

    prefill(network, cache, ids, step_size=STEP)
    other = cache.fork()
    look(cache)
    cache.rewind(5)
    look(cache)
    cache.evict(6, 9)
    look(cache)
    prefill(network, cache, ids[:1], step_size=STEP)
    look(cache)
    del cache
    look(other)
    return seen


if __name__ == "__main__":
    main()
