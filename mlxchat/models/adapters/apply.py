"""Add an adapter to a network: mlx-lm's low-rank modules around those that were adapted, or whole
weights in place of the model's own.

The modules follow from the adapter's arrays, rather than from its configuration as in mlx-lm: a
module without arrays would add zero.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from mlxchat.errors import AdapterError
from mlxchat.failures import device_failures, first_line
from mlxchat.models.adapters.adapter import FACTOR_A, Adapter, LowRank

# Parts of a path that wrappers around the same layers add or leave out.
WRAPPERS = {"model", "language_model"}
# What a low-rank module calls the module that it is around.
INNER = ("linear", "embedding")


def check(adapter: Adapter, network: nn.Module) -> None:
    """Raise AdapterError if the adapter does not fit the network, whose weights may be unread."""
    _matching_weights(adapter, network)
    _low_rank_modules(adapter, network)


def apply(adapter: Adapter, network: nn.Module, dtype: mx.Dtype) -> None:
    """Add the adapter to the network, which must not have one, and read its arrays.

    If the activations' `dtype` is float32, so are the factors; else they keep their precision, as
    in mlx-lm. Raises AdapterError, and then leaves the network as it was.
    """
    weights = _matching_weights(adapter, network)
    modules = _low_rank_modules(adapter, network)
    if dtype == mx.float32:
        for module in modules.values():
            module.update(_factors(module, dtype))
    _read(adapter, [*weights.values(), *(_factors(module) for module in modules.values())])
    network.update_modules(tree_unflatten(list(modules.items())))
    network.load_weights(list(weights.items()), strict=False)
    network.eval()


def exchange(adapter: Adapter | None, network: nn.Module, dtype: mx.Dtype) -> None:
    """Replace the network's low-rank adapter, if it has one, with this one, if any. Raises what
    `apply` raises, and then leaves the network as it was."""
    adapted = {path: each for path, each in network.named_modules() if FACTOR_A in each}
    plain = [(path, each[name]) for path, each in adapted.items() for name in INNER if name in each]
    network.update_modules(tree_unflatten(plain))
    if adapter is None:
        return
    try:
        apply(adapter, network, dtype)
    except BaseException:
        network.update_modules(tree_unflatten(list(adapted.items())))
        raise


def _low_rank_modules(adapter: Adapter, network: nn.Module) -> dict[str, nn.Module]:
    """The adapted modules by their path in the network, not yet read."""
    modules = dict(network.named_modules())
    paths = _paths(adapter, modules)
    return {
        paths[path]: _low_rank_module(adapter, modules[paths[path]], path, low_rank)
        for path, low_rank in adapter.low_rank.items()
    }


def _paths(adapter: Adapter, modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Each adapted module's path in this network, by the adapter's own. Raises AdapterError."""
    by_bare = {_bare(path): path for path in modules if path}
    found: dict[str, str] = {}
    for path in adapter.low_rank:
        here = path if path in modules else by_bare.get(_bare(path))
        if here is None:
            raise _misfit(adapter, f"the model has no {path}")
        found[path] = here
    return found


def _bare(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split(".") if part not in WRAPPERS)


def _low_rank_module(
    adapter: Adapter, module: nn.Module, path: str, low_rank: LowRank
) -> nn.Module:
    """mlx-lm's low-rank module around `module`. Source: its `linear_to_lora_layers`."""
    how = {"r": low_rank.rank, "scale": low_rank.scale}
    kind = _kind(module, dora=low_rank.dora)
    if kind is not None:
        adapted: Any = kind.from_base(module, **how)
    elif (to_lora := getattr(module, "to_lora", None)) is not None and not low_rank.dora:
        adapted = to_lora(**how)
    else:
        what = "DoRA" if low_rank.dora else "LoRA"
        raise _misfit(adapter, f"{path}, a {type(module).__name__}, cannot have {what}")
    expected: Any = tree_flatten(_factors(adapted))
    _require_same(adapter, path, low_rank.arrays, dict(expected))
    adapted.load_weights(list(low_rank.arrays.items()), strict=False)
    return adapted


def _kind(module: nn.Module, *, dora: bool) -> Any:
    """mlx-lm's class for a low-rank module around `module`; None if it has none."""
    from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
    from mlx_lm.tuner.dora import DoRAEmbedding, DoRALinear
    from mlx_lm.tuner.lora import LoRAEmbedding, LoRALinear, LoRASwitchLinear

    if hasattr(module, "to_lora"):
        return None
    if isinstance(module, nn.Linear | nn.QuantizedLinear):
        return DoRALinear if dora else LoRALinear
    if isinstance(module, nn.Embedding | nn.QuantizedEmbedding):
        return DoRAEmbedding if dora else LoRAEmbedding
    if isinstance(module, SwitchLinear | QuantizedSwitchLinear) and not dora:
        return LoRASwitchLinear
    return None


def _factors(module: nn.Module, dtype: mx.Dtype | None = None) -> dict[str, Any]:
    """The parameters of a low-rank module that are not those of the module inside."""
    own = {name: value for name, value in module.parameters().items() if name not in INNER}
    return own if dtype is None else tree_map(lambda array: array.astype(dtype), own)


def _matching_weights(adapter: Adapter, network: nn.Module) -> dict[str, mx.array]:
    """The whole weights, in the dtypes of those that they replace."""
    if not adapter.weights:
        return {}
    flat: Any = tree_flatten(network.parameters())
    own: dict[str, mx.array] = dict(flat)
    for name, array in adapter.weights.items():
        _require_fit(adapter, name, array, own.get(name))
    return {name: array.astype(own[name].dtype) for name, array in adapter.weights.items()}


def _require_same(
    adapter: Adapter, path: str, arrays: Mapping[str, mx.array], expected: Mapping[str, mx.array]
) -> None:
    for name, array in arrays.items():
        _require_fit(adapter, f"{path}.{name}", array, expected.get(name))
    for name in expected.keys() - arrays.keys():
        raise AdapterError(f"adapter {adapter.name} has no {path}.{name}: it is incomplete")


def _require_fit(adapter: Adapter, name: str, array: mx.array, expected: mx.array | None) -> None:
    if expected is None:
        raise _misfit(adapter, f"the model has no {name}")
    if array.shape != expected.shape:
        raise _misfit(adapter, f"{name} has shape {array.shape}, the model needs {expected.shape}")


def _misfit(adapter: Adapter, why: str) -> AdapterError:
    origin = f", trained on {adapter.trained_on}," if adapter.trained_on else ""
    return AdapterError(f"adapter {adapter.name}{origin} does not fit this model: {why}")


def _read(adapter: Adapter, arrays: object) -> None:
    try:
        with device_failures():
            mx.eval(arrays)
    except (RuntimeError, ValueError) as error:
        raise AdapterError(f"cannot read adapter {adapter.name}: {first_line(error)}") from error
