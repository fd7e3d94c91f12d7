"""Load a model on all ranks together: each keeps a shard. mlx-lm divides it, or here is why not."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.cache.build import is_uniform
from mlxchat.distributed import Ranks
from mlxchat.errors import MlxchatError, ModelUnsupported, RanksError
from mlxchat.models.load import Check, load_directory, without_overflow
from mlxchat.models.model import Model
from mlxchat.models.resolve import ResolvedModel, resolve_model
from mlxchat.request import Setup
from mlxchat.text.tokens import Tokenizer
from mlxchat.units import Notify


def load_shared(
    ranks: Ranks, setup: Setup, found: ResolvedModel, notify: Notify, check: Check
) -> Model:
    """Load a model, of which rank 0 has `found` the files, on all ranks; `check` may refuse it
    before any weights are read.

    Raises what loading raises, and RanksError if another rank cannot load it or has another.
    """
    with ranks.losses():
        ranks.watchdog.is_off = True
        path = Path(found.name).expanduser()
        name = ranks.same(lambda: str(path.resolve()) if path.exists() else found.name)
        sharding = Sharding(ranks.group, setup.pipeline)

        def check_all(network: nn.Module, tokenizer: Tokenizer) -> None:
            sharding.check(network)
            if check is not None:
                check(network, tokenizer)

        model: Model | None = None
        error: MlxchatError | None = None
        try:
            if not ranks.leads:
                found = resolve_model(
                    name, offline=setup.offline, ask=None, notify=notify, show_progress=False
                )
            model = load_directory(
                found.directory,
                found.name,
                dtype=setup.dtype,
                notify=notify,
                check=check_all,
                ranks=ranks.size,
                divide=sharding.apply,
            )
        except MlxchatError as raised:
            error = raised
        model = without_overflow(_agreed(ranks, model, error), setup.dtype, notify)
        # Finish everything here, since another thread computes from now on.
        platform.synchronize()
        ranks.watchdog.is_off = False
    return replace(model, ranks=ranks)


def _agreed(ranks: Ranks, model: Model | None, error: MlxchatError | None) -> Model:
    """The model, if all ranks have loaded the same one; raises on all of them if not."""
    failed = [rank for rank, could in enumerate(ranks.gather(model is None)) if could]
    for rank in failed[:1]:
        reason = ranks.same(lambda: str(error), rank)
        raise error or RanksError(f"rank {rank}: {reason}")
    assert model is not None
    ranks.check_same(
        json.dumps([model.config, str(model.dtype)], sort_keys=True),
        "a different model of that name or a different dtype: make them the same, and set --dtype",
    )
    return model


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a model is divided among the ranks of `group`: within layers, or by layer (`pipeline`).

    Source: mlx-lm's `sharded_load`, and its models' `shard` and `pipeline`.
    """

    group: mx.distributed.Group
    pipeline: bool

    def check(self, network: nn.Module) -> None:
        """Raise ModelUnsupported, with an alternative, if mlx-lm cannot divide the model so."""
        ranks = self.group.size()
        by_tensor, obstacle = hasattr(network, "shard"), _obstacle_to_pipelining(network)
        layers = len(getattr(network, "layers", ()))
        if obstacle and not by_tensor:
            reason = "cannot be divided among several machines: use another model"
        elif self.pipeline and obstacle:
            reason = f"cannot be pipelined: {obstacle}; use --no-pipeline to divide each layer"
        elif self.pipeline and layers < ranks:
            reason = f"of {layers} layers cannot be pipelined over {ranks} ranks"
        elif not self.pipeline and not by_tensor:
            reason = "cannot be divided within its layers: use --pipeline to give each rank some"
        else:
            return
        raise ModelUnsupported(f"a {_name(network)} model {reason}")

    def apply(self, network: nn.Module) -> None:
        """Keep only this rank's part of a network whose weights have not been evaluated.

        Raises ModelUnsupported if the number of ranks does not divide it evenly.
        """
        divided: Any = network
        if self.pipeline:
            divided.model.pipeline(self.group)
            return
        ranks, before = self.group.size(), _counts(network)
        try:
            divided.shard(self.group)
        except ValueError as error:
            raise ModelUnsupported(
                f"mlx-lm cannot divide a {_name(network)} model among {ranks} ranks: {error}"
            ) from error
        for (path, name), now in _counts(network).items():
            then = before.get((path, name), now)
            # mlx-lm rounds down.
            if now != then and now * ranks != then:
                what = name.removeprefix("n_").replace("_", " ")
                pipeline = "" if _obstacle_to_pipelining(network) else ", or --pipeline"
                raise ModelUnsupported(
                    f"this model's {then} {what} cannot be divided by {ranks}: use a number "
                    f"of ranks that divides them{pipeline}"
                )


def _name(network: nn.Module) -> str:
    return type(network).__module__.rpartition(".")[2]


def _obstacle_to_pipelining(network: nn.Module) -> str | None:
    """Why the network cannot be divided by layers; None if it can."""
    if not hasattr(getattr(network, "model", None), "pipeline"):
        return "mlx-lm does not support it"
    if not is_uniform(network):
        # Each rank derives its masks from its own layers.
        return "its layers have different kinds of cache"
    return None


def _counts(network: nn.Module) -> dict[tuple[str, str], int]:
    """The integers that modules hold, such as numbers of heads, by module and name."""
    return {
        (path, name): value
        for path, module in network.named_modules()
        for name, value in vars(module).items()
        if type(value) is int
    }
