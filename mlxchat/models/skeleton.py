"""A model's configuration and shape, without its weights.

MLX arrays are lazy: a model built from its configuration takes no memory until it is evaluated. So
the cache size per token, and whether a window is possible, are known before any weight is read.
"""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from mlxchat import platform
from mlxchat.errors import ModelBroken, ModelUnsupported, first_line
from mlxchat.files import check_not_lfs_pointer
from mlxchat.settings import unusable
from mlxchat.units import Notify

# Model types that mlx-lm runs with another type's module, some of them only with one of the
# `architectures`. Copies of the tables in `mlx_lm.utils`, whose import loads transformers and takes
# a second; `test_renamed_types_match_mlx_lm` checks them.
MODULE_OF_TYPE = {
    "mistral": "llama",
    "llava": "mistral3",
    "phi-msft": "phixtral",
    "falcon_mamba": "mamba",
    "joyai_llm_flash": "deepseek_v3",
    "kimi_k2": "deepseek_v3",
    "qwen2_5_vl": "qwen2_vl",
    "minimax_m2": "minimax",
    "iquestcoder": "llama",
    "xverse": "llama",
    "gemma4_unified": "gemma4",
    "deepseek_v41_text": "deepseek_v41",
}
MODULE_OF_ARCHITECTURE = {("bailing_hybrid", "BailingMoeV3ForCausalLM"): "bailing_moe_v3"}

# Those that weights, keys and values can have.
DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}

# Modules that end the process if another package is missing: what is imported, what is installed.
NEEDED_PACKAGES = {"olmo": ("hf_olmo", "ai2-olmo")}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ModelBroken naming the file if it is not one."""
    value = _read_value(path)
    if not isinstance(value, dict):
        raise ModelBroken(f"{path} is not a JSON object")
    return value


def _read_value(path: Path) -> Any:
    check_not_lfs_pointer(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_hook=_untagged)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelBroken(f"cannot read {path}: {error}") from error


def _untagged(value: dict[str, Any]) -> Any:
    # transformers writes the numbers that JSON lacks as {"__float__": "Infinity"}.
    tag = value.get("__float__") if len(value) == 1 else None
    if isinstance(tag, str) and tag.removeprefix("-") in ("Infinity", "NaN"):
        return float(tag)
    return value


def read_config(directory: Path) -> dict[str, Any]:
    """Read the model's config.json, with a `quantization_config` that stands elsewhere, as mlx-lm
    does. Raises ModelBroken if it is missing or names no model type."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelBroken(f"{directory} has no config.json, so it is not a model directory")
    config = read_json(path)
    if not isinstance(config.get("model_type"), str):
        raise ModelBroken(f"{path} names no model_type")
    if "quantization_config" not in config:
        elsewhere = directory / "hf_quant_config.json"
        if "quantization_config" in (text := text_config(config)):
            config["quantization_config"] = text["quantization_config"]
        elif elsewhere.exists():
            config["quantization_config"] = _read_value(elsewhere)
    return config


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a multimodal model's language model; empty for others."""
    value = config.get("text_config")
    return value if isinstance(value, dict) else {}


def read_generation_config(directory: Path, notify: Notify) -> dict[str, Any]:
    """The model's generation_config.json. One that cannot be read is ignored with a notice, and so
    are its values that cannot be used, since the model does not need them."""
    path = directory / "generation_config.json"
    try:
        found = read_json(path) if path.exists() else {}
    except ModelBroken as error:
        notify(f"ignoring the model's sampling and end tokens: {error}")
        return {}
    names = unusable(found)
    ids = found.get("eos_token_id")
    if ids is not None and not all(type(id_) is int for id_ in as_list(ids)):
        names.append("eos_token_id")
    if names:
        notify(f"ignoring invalid values of {', '.join(names)} in {path}")
    return found


def as_list(value: Any) -> list[Any]:
    """The list, or a list of the only value."""
    return value if isinstance(value, list) else [value]


def architectures(config: dict[str, Any]) -> list[str]:
    """The names of the model's classes in transformers."""
    return [str(name) for name in as_list(config.get("architectures"))]


def module_name(config: dict[str, Any]) -> str:
    """The module of mlx-lm that runs the model. Source: `_get_classes` in mlx_lm/utils.py."""
    model_type: str = config["model_type"]
    for name in architectures(config):
        if found := MODULE_OF_ARCHITECTURE.get((model_type, name)):
            return found
    return MODULE_OF_TYPE.get(model_type, model_type)


def build_skeleton(config: dict[str, Any]) -> nn.Module:
    """Build mlx-lm's model for `config` with lazy random weights that are never evaluated.

    Raises ModelUnsupported for a type that mlx-lm lacks, ModelBroken if its module rejects it.
    """
    model_type: str = config["model_type"]
    if config.get("model_file") is not None:
        raise ModelUnsupported(
            f"this model needs its own Python code ({config['model_file']!r}), which mlxchat does "
            "not run"
        )
    module = _import_module(model_type, module_name(config))
    try:
        return module.Model(module.ModelArgs.from_dict(config))
    except Exception as error:
        raise ModelBroken(
            f"config.json does not describe a {model_type} model: {first_line(error)}"
        ) from error


def _import_module(model_type: str, name: str) -> ModuleType:
    # Names of mlx-lm's modules may have hyphens, but no dots or slashes.
    if not name.replace("-", "_").isidentifier():
        raise ModelUnsupported(f"mlx-lm does not support the model type {model_type!r}")
    probe, package = NEEDED_PACKAGES.get(name, ("mlx_lm", ""))
    if importlib.util.find_spec(probe) is None:
        raise ModelUnsupported(f"mlx-lm needs the package {package} for the type {model_type!r}")
    try:
        module = importlib.import_module(f"mlx_lm.models.{name}")
    except ImportError as error:
        raise ModelUnsupported(
            f"the installed mlx-lm does not support the model type {model_type!r}"
        ) from error
    # phi3 warns on stdout, which is for the answer, that it ignores a rope's scaling.
    vars(module)["print"] = lambda *_, **__: None
    return module


def context_length(config: dict[str, Any]) -> int | None:
    """The trained context in tokens, or None if the configuration lacks it."""
    for part in (config, text_config(config)):
        for key in ("max_position_embeddings", "max_sequence_length", "n_positions", "seq_length"):
            value = part.get(key)
            if type(value) is int and value > 0:
                return value
    return None


def named_parameters(model: nn.Module) -> list[tuple[str, mx.array]]:
    """Every weight by its dotted name."""
    return cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))


def parameter_count(model: nn.Module, arrays: Mapping[str, mx.array]) -> int:
    """Number of weights of an unquantized model, given its `arrays` by name. Shared arrays count
    once, such as an embedding that is also the output head."""
    first_name: dict[int, str] = {}
    for name, array in arrays.items():
        first_name.setdefault(id(array), name)
    return sum(
        parameter.size
        for name, parameter in named_parameters(model)
        if name not in arrays or first_name[id(arrays[name])] == name
    )


def held_bytes(model: nn.Module) -> int:
    """Bytes of the model's weights in their current dtype; shared arrays count once."""
    return sum({id(array): array.nbytes for _, array in named_parameters(model)}.values())


# Share of the free memory for weights; the rest is for the cache and activations.
WEIGHTS_SHARE = 0.8


def suitable_dtype(parameters: int, free_bytes: int) -> mx.Dtype | None:
    """The dtype for this many weights on this device, or None to keep the stored one.

    On a CPU it is float32 if that fits, since MLX's CPU kernels are by far the fastest in it.
    """
    if platform.on_gpu():
        return None
    return mx.float32 if parameters * mx.float32.size <= WEIGHTS_SHARE * free_bytes else None
