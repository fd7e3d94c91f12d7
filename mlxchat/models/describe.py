"""The models on this disk and in the catalogue, and the facts about each: from its configuration
and file headers, without reading weights."""

import importlib.util
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxchat import paths, platform
from mlxchat.cache.build import drafting, kv_bytes_per_token
from mlxchat.errors import (
    HubError,
    MlxchatError,
    ModelError,
    ModelNotFound,
    ModelUnsupported,
    UsageError,
    first_line,
)
from mlxchat.models import hub
from mlxchat.models.catalog import CATALOG, EMBEDDED_ALIAS, EXPECTED_CACHE_TOKENS
from mlxchat.models.gguf import directory_name, embedded_gguf
from mlxchat.models.hub_cache import cached_repos, cached_snapshot, disk_bytes, repo_dir
from mlxchat.models.resolve import Located, is_hub_id
from mlxchat.models.skeleton import (
    DTYPES,
    architectures,
    build_skeleton,
    context_length,
    module_name,
    parameter_count,
    read_config,
    suitable_dtype,
)
from mlxchat.models.weights import arrays_of, load_arrays, require_weights


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
        bytes_of_dtype[str(array.dtype).removeprefix("mlx.core.")] += array.nbytes
    arrays = arrays_of(network, config, directory, stored)
    if arrays:
        require_weights(network, arrays, directory)
    size_bytes = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    hub_id = name if is_hub_id(name) else None
    facts = ModelFacts(name, hub_id, "yes", size_bytes, directory=str(directory))
    return _measured(facts, config, network, arrays, bytes_of_dtype)


def describe_remote(repo_id: str) -> ModelFacts:
    """Find the facts about a model on the Hub without downloading it; if that does not answer,
    those of the catalogue. Raises what `describe` and `hub.look_up` raise."""
    try:
        config, sizes = hub.look_up(repo_id)
    except HubError as error:
        for facts in catalogue():
            if facts.hub_id == repo_id:
                return replace(facts, problem=str(error))
        raise
    named = config.get("dtype") or config.get("torch_dtype")
    weights = (size for name, size in sizes.items() if name.endswith(".safetensors"))
    bytes_of_dtype = Counter({named if named in DTYPES else "bfloat16": sum(weights)})
    facts = ModelFacts(repo_id, repo_id, "no", sum(sizes.values()))
    return _measured(facts, config, build_skeleton(config), {}, bytes_of_dtype)


def _measured(
    facts: ModelFacts,
    config: dict[str, Any],
    network: nn.Module,
    arrays: dict[str, mx.array],
    bytes_of_dtype: Counter[str],
) -> ModelFacts:
    """The facts, with those of the network, which is never evaluated."""
    free_bytes, parameters = platform.free_memory_bytes(), parameter_count(network, arrays)
    # The dtype of activations, keys and values: for packed weights, that of their scales.
    floating = (DTYPES[name] for name, _ in bytes_of_dtype.most_common() if name in DTYPES)
    stored_dtype = next(floating, mx.bfloat16)
    context = context_length(config)
    cache_tokens = min(context or EXPECTED_CACHE_TOKENS, EXPECTED_CACHE_TOKENS)
    cache_bytes = cache_tokens * _kv_bytes_per_token(network, stored_dtype)
    needed_bytes = bytes_of_dtype.total() + cache_bytes
    dtype = suitable_dtype(parameters, free_bytes) or stored_dtype
    return replace(
        facts,
        model_type=config["model_type"],
        parameters=parameters,
        quantization=_quantization(config, bytes_of_dtype, parameters),
        context_length=context,
        kv_bytes_per_token=_kv_bytes_per_token(network, dtype),
        memory_needed_bytes=needed_bytes,
        fits=needed_bytes <= free_bytes,
        lookup=drafting(network),
    )


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
        return f"{8 * bytes_of_dtype.total() / max(parameters, 1):.1f} bits per weight"
    mode = quantization.get("mode", "affine")
    return f"{bits}-bit, group {group_size}" + (f", {mode}" if mode != "affine" else "")


def list_models() -> list[ModelFacts]:
    """Every language model on this disk, unfinished downloads included."""
    return [*_from_hub(), *_converted()]


def list_choices() -> list[ModelFacts]:
    """The catalogue, by memory needed, then the other models on this disk."""
    known = catalogue()
    hub_ids = {each.hub_id for each in known}
    return [*known, *(each for each in list_models() if each.hub_id not in hub_ids)]


def catalogue() -> list[ModelFacts]:
    """What is known of the catalogue's models without their files."""
    free_bytes = platform.free_memory_bytes()

    def here(hub_id: str) -> str:
        partly = "partly" if repo_dir(hub_id).is_dir() else "no"
        return partly if cached_snapshot(hub_id) is None else "yes"

    return [
        ModelFacts(
            name=model.alias,
            hub_id=model.hub_id,
            here=here(model.hub_id),
            size_bytes=model.download_bytes,
            parameters=model.parameters,
            memory_needed_bytes=model.memory_bytes(float32=False),
            fits=model.memory_bytes(float32=False) <= free_bytes,
        )
        for model in CATALOG
    ]


def _from_hub() -> Iterator[ModelFacts]:
    for repo_id, snapshot in cached_repos():
        size_bytes = disk_bytes(repo_dir(repo_id))
        if snapshot is None:
            problem = f"partly downloaded: run `mlxchat models pull {repo_id}` to resume"
            yield ModelFacts(repo_id, repo_id, "partly", size_bytes, problem=problem)
        elif is_language_model(snapshot):
            yield _described(repo_id, snapshot, size_bytes)


def _converted() -> Iterator[ModelFacts]:
    gguf = embedded_gguf()
    embedded_dir = None if gguf is None else paths.imported_models_dir() / directory_name(gguf)
    for directory in sorted(paths.imported_models_dir().glob("[!.]*/")):
        name = EMBEDDED_ALIAS if directory == embedded_dir else directory.name
        yield _described(name, directory, disk_bytes(directory))
    if gguf is not None and embedded_dir is not None and not embedded_dir.is_dir():
        problem = "installed; converted when first used"
        yield ModelFacts(EMBEDDED_ALIAS, None, "yes", gguf.stat().st_size, problem=problem)


def _described(name: str, directory: Path, size_bytes: int) -> ModelFacts:
    """The facts about a model, with its size on the disk, all revisions included."""
    try:
        return replace(describe(name, directory), size_bytes=size_bytes)
    except MlxchatError as error:
        hub_id = name if is_hub_id(name) else None
        return ModelFacts(name, hub_id, "yes", size_bytes, problem=str(error))


def is_language_model(directory: Path) -> bool:
    """Whether the model generates text, unlike an encoder, even if we cannot run it."""
    try:
        config = read_config(directory)
    except ModelError:
        return False
    if any(name.endswith("ForCausalLM") for name in architectures(config)):
        return True
    module = module_name(config)
    known = module.replace("-", "_").isidentifier()
    return known and importlib.util.find_spec(f"mlx_lm.models.{module}") is not None


def removable_dir(located: Located) -> Path:
    """The model's directory, made by mlxchat or the Hub's library, so that it may be removed.

    Raises ModelNotFound if it is not on this disk, UsageError for the user's own directory.
    """
    if located.kind == "directory":
        raise UsageError(f"{located.name} is your own directory: mlxchat does not delete it")
    directory = located.path or repo_dir(located.name)
    if located.kind == "gguf":
        directory = paths.imported_models_dir() / directory_name(directory)
    if not directory.is_dir():
        missing = "has not been converted" if located.kind == "gguf" else "is not on this disk"
        raise ModelNotFound(f"{located.name} {missing}: nothing to delete")
    return directory
