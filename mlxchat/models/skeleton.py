"""A model's configuration and its shape, without its weights.

MLX arrays are lazy: a model built from its configuration alone costs no memory until something
evaluates it. So what a cache holds a token, and whether a window can be kept, is known before a
single weight is read.
"""

import contextlib
import importlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from mlxchat import platform
from mlxchat.errors import ModelBroken, ModelUnsupported

# Model types that mlx-lm runs with another type's module. Its own table sits in `mlx_lm.utils`,
# whose import brings transformers in and costs a second: see `test_renamed_types_are_mlx_lms`.
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


# Modules that print, and leave, where a package of their own is missing.
PRINTS = {"olmo"}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises ModelBroken naming the file if it is anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelBroken(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelBroken(f"{path} does not hold a JSON object")
    return value


def read_config(directory: Path) -> dict[str, Any]:
    """The model's config.json. Raises ModelBroken where it is missing or names no model type."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelBroken(f"{directory} holds no config.json, so it is not a model directory")
    config = read_json(path)
    if not isinstance(config.get("model_type"), str):
        raise ModelBroken(f"{path} names no model_type")
    return config


def build_skeleton(config: dict[str, Any]) -> nn.Module:
    """Build mlx-lm's model for `config` with lazy random weights that are never evaluated.

    Raises ModelUnsupported for a type that the installed mlx-lm has no module for, ModelBroken
    for a configuration that its module refuses.
    """
    model_type: str = config["model_type"]
    if config.get("model_file") is not None:
        raise ModelUnsupported(
            f"this model brings its own Python code ({config['model_file']!r}), "
            "which mlxchat does not run"
        )
    module = _import_module(model_type, MODULE_OF_TYPE.get(model_type, model_type))
    try:
        return module.Model(module.ModelArgs.from_dict(config))
    except (TypeError, ValueError, KeyError, AttributeError, ZeroDivisionError) as error:
        raise ModelBroken(f"config.json does not describe a {model_type} model: {error}") from error


def _import_module(model_type: str, name: str) -> ModuleType:
    # Some of mlx-lm's modules have a hyphen in their name; none has a dot or a slash.
    if not name.replace("-", "_").isidentifier():
        raise ModelUnsupported(f"model type {model_type!r} is not one that mlx-lm knows")
    printed = io.StringIO()
    # For that one module only: it takes stdout from all threads, a chat's prompt among them.
    held = contextlib.redirect_stdout(printed) if name in PRINTS else contextlib.nullcontext()
    try:
        with held:
            return importlib.import_module(f"mlx_lm.models.{name}")
    except ModuleNotFoundError as error:
        raise ModelUnsupported(
            f"model type {model_type!r} is not one that the installed mlx-lm knows"
        ) from error
    except SystemExit as error:
        # A module that misses a package of its own says so on stdout, and leaves.
        raise ModelUnsupported(
            f"mlx-lm cannot run the model type {model_type!r} here: {printed.getvalue().strip()}"
        ) from error


def context_length(config: dict[str, Any]) -> int | None:
    """Tokens that the model was trained to see at once, or None where the config tells none."""
    for part in (config, config.get("text_config") or {}):
        for key in ("max_position_embeddings", "max_sequence_length", "n_positions", "seq_length"):
            value = part.get(key)
            if isinstance(value, int) and value > 0:
                return value
    return None


def named_parameters(model: nn.Module) -> list[tuple[str, mx.array]]:
    """Every weight by its dotted name."""
    return cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))


def parameter_count(model: nn.Module, arrays: Mapping[str, mx.array]) -> int:
    """Number of weights of an unquantized model that is to be filled with `arrays`, by name: what
    two parameters share counts once, such as an embedding that is the output head as well."""
    first_name: dict[int, str] = {}
    for name, array in arrays.items():
        first_name.setdefault(id(array), name)
    return sum(
        parameter.size
        for name, parameter in named_parameters(model)
        if name not in arrays or first_name[id(arrays[name])] == name
    )


def held_bytes(model: nn.Module) -> int:
    """Bytes that the model's weights take as they are; what two parameters share counts once."""
    return sum({id(array): array.nbytes for _, array in named_parameters(model)}.values())


# What the weights may take of the memory that is free; the rest is for the cache and the steps.
WEIGHTS_SHARE = 0.8


def suitable_dtype(parameters: int, free_bytes: int) -> mx.Dtype | None:
    """The dtype to hold so many weights in on this device, or None to hold them as they are stored.

    MLX's CPU kernels are fastest, by far, in float32: that it is on a CPU where it fits.
    """
    if platform.on_gpu():
        return None
    fits = parameters * mx.float32.size <= WEIGHTS_SHARE * free_bytes
    return mx.float32 if fits else None
