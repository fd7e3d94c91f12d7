"""Every array of a network, to evaluate them all before another thread runs it.

Until it is evaluated, an MLX array belongs to the thread that created it. `nn.Module.parameters()`
omits arrays whose names begin with an underscore, such as the frequencies of a scaled rope.
"""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx import nn


def evaluate(network: nn.Module) -> None:
    """Evaluate all arrays of `network`, so that any thread may use it."""
    mx.eval(list(held_arrays(network)))


def held_arrays(network: nn.Module) -> Iterator[mx.array]:
    """Yield the arrays of every module: parameters and private ones."""
    for _, module in network.named_modules():
        yield from _arrays_in([*module.values(), *vars(module).values()])


def _arrays_in(value: Any) -> Iterator[mx.array]:
    """Yield the arrays in nested containers, except those of submodules."""
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _arrays_in(item)
    elif isinstance(value, dict) and not isinstance(value, nn.Module):
        yield from _arrays_in(list(value.values()))
