"""Facts about a model from its configuration and file headers, without reading weights."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.cache import drafting, kv_bytes_per_token
from mlxchat.errors import MlxchatError, ModelUnsupported, first_line
from mlxchat.models import hub
from mlxchat.models.catalog import EXPECTED_CACHE_TOKENS
from mlxchat.models.locate import is_hub_id
from mlxchat.models.skeleton import (
    build_skeleton,
    context_length,
    parameter_count,
    read_config,
    suitable_dtype,
)
from mlxchat.models.weights import arrays_of, load_arrays, require_weights

# The dtypes that keys and values can have.
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts shown by `mlxchat models`; None for those that are not known, `problem` says why.

    `hub_id` is None if it is not on the Hub; `here` is "yes", "partly" or "no". `size_bytes` is the
    size of its files. `memory_needed_bytes` is the minimum: the weights as stored and a cache of
    EXPECTED_CACHE_TOKENS tokens, or its context if smaller. `fits`: whether this machine has that
    much memory free now. `kv_bytes_per_token` is in the dtype that suits this device, which is
    float32 on a CPU with room for it. `lookup`: whether drafts work.
    """

    name: str
    hub_id: str | None
    here: str
    size_bytes: int
    model_type: str | None = None
    parameters: int | None = None
    quantization: str | None = None
    context_length: int | None = None
    kv_bytes_per_token: int | None = None
    memory_needed_bytes: int | None = None
    fits: bool | None = None
    lookup: str | None = None
    directory: str | None = None
    problem: str | None = None


def describe(name: str, directory: Path) -> ModelFacts:
    """Find the facts about the model in `directory`.

    Raises ModelBroken if files are missing, truncated or contradict each other, and
    ModelUnsupported for a model that the installed mlx-lm does not know.
    """
    config = read_config(directory)
    network = build_skeleton(config)
    stored = load_arrays(directory)
    bytes_of_dtype = Counter[str]()
    for array in stored.values():
        bytes_of_dtype[_name_of(array.dtype)] += array.nbytes
    arrays = arrays_of(network, config, directory, stored)
    if arrays:
        require_weights(network, arrays, directory)
    size_bytes = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    hub_id = name if is_hub_id(name) else None
    facts = ModelFacts(name, hub_id, "yes", size_bytes, directory=str(directory))
    parameters = parameter_count(network, arrays)
    return _measured(facts, config, network, parameters, bytes_of_dtype)


def describe_remote(repo_id: str) -> ModelFacts:
    """Find the facts about a model on the Hub without downloading it. Raises what `describe` and
    `hub.look_up` raise."""
    config, sizes = hub.look_up(repo_id)
    network = build_skeleton(config)
    named = config.get("torch_dtype")
    weights = (size for name, size in sizes.items() if name.endswith(".safetensors"))
    bytes_of_dtype = Counter({named if named in DTYPES else "bfloat16": sum(weights)})
    facts = ModelFacts(repo_id, repo_id, "no", sum(sizes.values()))
    parameters = parameter_count(network, {})
    return _measured(facts, config, network, parameters, bytes_of_dtype)


def _measured(
    facts: ModelFacts,
    config: dict[str, Any],
    network: nn.Module,
    parameters: int,
    bytes_of_dtype: Counter[str],
) -> ModelFacts:
    """The facts, with those of the network, which is never evaluated."""
    free_bytes = platform.free_memory_bytes()
    dtype = suitable_dtype(parameters, free_bytes)
    stored_dtype = _stored_dtype(bytes_of_dtype)
    context = context_length(config)
    cache_tokens = min(context or EXPECTED_CACHE_TOKENS, EXPECTED_CACHE_TOKENS)
    cache_bytes = cache_tokens * _kv_bytes_per_token(network, stored_dtype)
    memory_needed_bytes = bytes_of_dtype.total() + cache_bytes
    return replace(
        facts,
        model_type=config["model_type"],
        parameters=parameters,
        quantization=_quantization(config, bytes_of_dtype, parameters),
        context_length=context,
        kv_bytes_per_token=_kv_bytes_per_token(network, dtype or stored_dtype),
        memory_needed_bytes=memory_needed_bytes,
        fits=memory_needed_bytes <= free_bytes,
        lookup=drafting(network),
    )


def _name_of(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _stored_dtype(bytes_of_dtype: Counter[str]) -> mx.Dtype:
    """The dtype of activations, keys and values: for packed weights, that of their scales."""
    floating = [name for name, _ in bytes_of_dtype.most_common() if name in DTYPES]
    return getattr(mx, floating[0]) if floating else mx.bfloat16


def _kv_bytes_per_token(network: nn.Module, dtype: mx.Dtype) -> int:
    try:
        return kv_bytes_per_token(network, dtype)
    except MlxchatError:
        raise
    except Exception as error:
        raise ModelUnsupported(f"its cache cannot be measured: {first_line(error)}") from error


def _quantization(config: dict[str, Any], bytes_of_dtype: Counter[str], parameters: int) -> str:
    """Such as "4-bit, group 64", or "5.1 bits per weight" if layers differ."""
    quantization = config.get("quantization") or config.get("quantization_config")
    if not isinstance(quantization, dict):
        return bytes_of_dtype.most_common(1)[0][0] if bytes_of_dtype else "unknown"
    bits, group_size = quantization.get("bits"), quantization.get("group_size")
    mixed = any(isinstance(value, dict) for value in quantization.values())
    if mixed or bits is None or group_size is None:
        bits_per_weight = 8 * bytes_of_dtype.total() / max(parameters, 1)
        return f"{bits_per_weight:.1f} bits per weight"
    mode = quantization.get("mode", "affine")
    return f"{bits}-bit, group {group_size}" + (f", {mode}" if mode != "affine" else "")
