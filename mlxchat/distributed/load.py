"""Load a model on all ranks together: each finds it on its own and keeps its own shard."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from mlxchat import platform
from mlxchat.about import __version__
from mlxchat.distributed.leader import Leader
from mlxchat.distributed.ranks import Order, Ranks
from mlxchat.distributed.shard import Sharding
from mlxchat.errors import MlxchatError, RanksError
from mlxchat.models.load import Check, load_directory, without_overflow
from mlxchat.models.model import Model
from mlxchat.models.resolve import ResolvedModel, resolve_model
from mlxchat.progress import Notify


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rank 0's message to the others about a model: its name and how to load it."""

    name: str
    device: str
    dtype: str
    pipeline: bool
    offline: bool


def lead_loading(
    ranks: Ranks,
    found: ResolvedModel,
    *,
    device: str,
    dtype: str,
    pipeline: bool,
    offline: bool,
    notify: Notify,
    check: Check,
) -> Model:
    """Load a model on all ranks; `check` may refuse it here before any weights are read.

    Raises what loading raises, and RanksError if another rank cannot load it or has a different
    one.
    """
    path = Path(found.name).expanduser()
    name = str(path.resolve()) if path.exists() else found.name
    wanted = Wanted(name, device, dtype, pipeline, offline)
    number = ranks.new_number()
    with ranks.in_step():
        ranks.send(Order.LOAD, number)
    # Loading is slow and may be interrupted.
    ranks.is_in_step = True
    ranks.text(json.dumps(asdict(wanted)))
    model = _agreed(ranks, lambda: _load(ranks, found, wanted, notify, check), dtype, notify)
    leader = Leader(model.network, ranks, number)
    return replace(model, network=leader, peers=leader)


def follow_loading(ranks: Ranks) -> Model | None:
    """Load this rank's shard of the model that rank 0 names; None if any rank failed, which rank 0
    reports."""
    wanted = Wanted(**json.loads(ranks.text()))

    def load() -> Model:
        platform.select_device(wanted.device)
        found = resolve_model(
            wanted.name, offline=wanted.offline, ask=None, notify=_silent, show_progress=False
        )
        return _load(ranks, found, wanted, _silent)

    try:
        return _agreed(ranks, load, wanted.dtype, _silent)
    except MlxchatError:
        return None


def _load(
    ranks: Ranks, found: ResolvedModel, wanted: Wanted, notify: Notify, check: Check = None
) -> Model:
    """Load this rank's shard."""
    return load_directory(
        found.directory,
        found.name,
        dtype=wanted.dtype,
        notify=notify,
        check=check,
        sharding=Sharding(ranks.group, wanted.pipeline),
    )


def _agreed(ranks: Ranks, load: Callable[[], Model], dtype: str, notify: Notify) -> Model:
    """Return what `load` loads, in a form that does not overflow, once all ranks have loaded it.

    If any rank fails, raises on all of them.
    """
    model: Model | None = None
    error: MlxchatError | None = None
    try:
        model = load()
    except MlxchatError as raised:
        error = raised
    failed = [rank for rank, could in enumerate(ranks.gather(int(model is None))) if could]
    for rank in failed[:1]:
        reason = ranks.text("" if error is None else str(error), rank)
        ranks.is_in_step = False
        if error is not None:
            raise error
        raise RanksError(f"rank {rank}: {reason}")
    assert model is not None
    others = ranks.differing(
        [model.config, str(model.dtype), __version__, version("mlx"), version("mlx-lm")]
    )
    if not others:
        model = without_overflow(model, dtype, notify)
    ranks.is_in_step = False
    if others:
        raise RanksError(
            f"rank {others[0]} has a different model of that name, a different dtype, "
            "or different versions of mlxchat, mlx or mlx-lm: make them the same, and "
            "set --dtype"
        )
    # Finish everything here, since another thread computes from now on.
    platform.synchronize()
    return model


def _silent(_: str) -> None:
    return
