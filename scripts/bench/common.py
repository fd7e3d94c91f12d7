"""What the scripts for the manual's figures share. Each writes one JSON line for each figure."""

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.nn.losses import cross_entropy


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("-m", "--model", default="smollm2")
    made.add_argument("--quick", action="store_true", help="measure little, to see that it works")
    return made


def show(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def losses(
    network: nn.Module, cache: list[Any] | None, ids: np.ndarray, step_size: int
) -> Iterator[float]:
    """Negative log-likelihood of each token after the first, in steps of `step_size`."""
    for start in range(0, len(ids) - 1, step_size):
        step = ids[start : start + step_size]
        targets = mx.array(ids[start + 1 : start + step_size + 1])
        logits = network(mx.array(step)[None], cache=cache)[0, : targets.size]
        values: Any = cross_entropy(logits.astype(mx.float32), targets).tolist()
        yield from values


def perplexity(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(values))


def logprobs(logits: mx.array) -> mx.array:
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def picked(rows: mx.array, ids: np.ndarray) -> float:
    """The sum over `rows: (T, V)` of what stands at `ids`."""
    total: Any = mx.take_along_axis(rows, mx.array(ids)[:, None], axis=-1).sum().item()
    return total


def kl_divergence(rows: mx.array, others: mx.array) -> float:
    """Mean Kullback-Leibler divergence of `others` from `rows`, both log-probabilities `(T, V)`."""
    found: Any = (mx.exp(rows) * (rows - others)).sum(axis=-1).mean().item()
    return found
