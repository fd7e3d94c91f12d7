"""Divide a model among ranks, or give the reason why it cannot be divided. mlx-lm does the work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxchat.cache import is_uniform
from mlxchat.errors import ModelUnsupported


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a model is divided among the ranks of `group`: within each layer or, with `pipeline`, by
    layers.

    Source: mlx-lm's `sharded_load`, and its models' `shard` and `pipeline`.
    """

    group: mx.distributed.Group
    pipeline: bool

    @property
    def ranks(self) -> int:
        return self.group.size()

    def check(self, network: nn.Module) -> None:
        """Raise ModelUnsupported, with an alternative, if mlx-lm cannot divide the model so."""
        by_tensor, obstacle = hasattr(network, "shard"), _obstacle_to_pipelining(network)
        name = _name(network)
        if not by_tensor and obstacle:
            raise ModelUnsupported(
                f"a {name} model cannot be divided among several machines: use another model"
            )
        if self.pipeline and obstacle:
            raise ModelUnsupported(
                f"a {name} model cannot be pipelined: {obstacle}; use --no-pipeline to "
                "divide each layer"
            )
        if not self.pipeline and not by_tensor:
            raise ModelUnsupported(
                f"mlx-lm cannot divide the layers of a {name} model: use --pipeline to "
                "give each rank whole layers"
            )
        layers = len(_layers(network))
        if self.pipeline and layers < self.ranks:
            raise ModelUnsupported(
                f"the model has {layers} layers and cannot be pipelined over {self.ranks} ranks"
            )

    def apply(self, network: nn.Module) -> None:
        """Keep only this rank's part of a network whose weights have not been evaluated.

        Raises ModelUnsupported if the number of ranks does not divide it evenly.
        """
        if self.pipeline:
            inner = _pipelined(network)
            assert inner is not None
            inner.pipeline(self.group)
            return
        before = dict(_counts(network))
        shard: Any = network.shard
        try:
            shard(self.group)
        except ValueError as error:
            raise ModelUnsupported(
                f"mlx-lm cannot divide a {_name(network)} model among {self.ranks} ranks: {error}"
            ) from error
        for (path, name), now in _counts(network):
            then = before.get((path, name), now)
            # mlx-lm rounds down.
            if now != then and now * self.ranks != then:
                what = name.removeprefix("n_").replace("_", " ")
                can_pipeline = _obstacle_to_pipelining(network) is None
                pipeline = ", or --pipeline" if can_pipeline else ""
                raise ModelUnsupported(
                    f"this model's {then} {what} cannot be divided by {self.ranks}: use a number "
                    f"of ranks that divides them{pipeline}"
                )


def _name(network: nn.Module) -> str:
    return type(network).__module__.rpartition(".")[2]


def _obstacle_to_pipelining(network: nn.Module) -> str | None:
    """Why the network cannot be divided by layers; None if it can."""
    if _pipelined(network) is None:
        return "mlx-lm does not support it"
    if not is_uniform(network):
        # Each rank derives its masks from its own layers.
        return "its layers have different kinds of cache"
    return None


def _pipelined(network: nn.Module) -> Any:
    """The part of a network that mlx-lm can pipeline, if any."""
    inner = getattr(network, "model", None)
    return inner if hasattr(inner, "pipeline") else None


def _layers(network: nn.Module) -> Any:
    return getattr(network, "layers", ())


def _counts(network: nn.Module) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield the integers that modules hold, such as numbers of heads, by module and name."""
    for path, module in network.named_modules():
        for name, value in vars(module).items():
            if type(value) is int:
                yield (path, name), value
