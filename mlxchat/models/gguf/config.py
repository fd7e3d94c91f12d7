"""Turns a GGUF file's metadata into the config.json that mlx-lm reads, for known architectures.

Refuses, by name, anything that would run but give wrong results: other architectures, experts, and
settings that mlx-lm's modules do not support.
"""

from typing import Any

import numpy as np

from mlxchat.errors import ModelUnsupported
from mlxchat.models.gguf.read import GgufFile, shape_of

# GGUF architecture → Hugging Face's model type, which selects mlx-lm's module, and class.
ARCHITECTURES = {
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
}

# Settings that change the arithmetic and that mlx-lm's modules lack, with their neutral values.
NEUTRAL = {
    "attention.causal": True,
    "attention.scale": 0.0,
    "attention.temperature_scale": 0.0,
    "expert_count": 0,
    "final_logit_softcapping": 0.0,
    "pooling_type": 0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
}

# Gemma 3, if the file does not specify it. Source: src/models/gemma3.cpp of ggml-org/llama.cpp.
GEMMA3_PATTERN = 6
GEMMA3_LOCAL_ROPE_THETA = 10_000.0
GEMMA3_27B_LAYERS = 62

# The divisors of Llama 3's frequencies, and llama.cpp's settings for them, whatever the model's
# length. Source: conversion/llama.py of ggml-org/llama.cpp.
ROPE_FACTORS = "rope_freqs.weight"
LLAMA3_LOW_FREQ_FACTOR = 1.0
LLAMA3_HIGH_FREQ_FACTOR = 4.0
LLAMA3_ORIGINAL_CONTEXT = 8192


def build_config(file: GgufFile) -> dict[str, Any]:
    """The model's part of config.json, without quantization and ids. Raises ModelUnsupported."""
    arch = _supported_architecture(file)
    if "token_embd.weight" not in file.tensors:
        raise file.broken("tensor 'token_embd.weight' is missing")
    heads = file.positive(f"{arch}.attention.head_count")
    hidden = file.positive(f"{arch}.embedding_length")
    head_dim = file.positive(f"{arch}.attention.key_length", hidden // heads)
    theta = file.get(f"{arch}.rope.freq_base", float, 10_000.0)
    if theta <= 0:
        raise file.broken(f"the RoPE base is {theta}")
    model_type, class_name = ARCHITECTURES[arch]
    config: dict[str, Any] = {
        "model_type": model_type,
        "architectures": [class_name],
        "hidden_size": hidden,
        "num_hidden_layers": file.positive(f"{arch}.block_count"),
        "intermediate_size": file.positive(f"{arch}.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.positive(f"{arch}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": shape_of(file.tensors["token_embd.weight"])[0],
        "max_position_embeddings": file.positive(f"{arch}.context_length"),
        "rms_norm_eps": file.get(f"{arch}.attention.layer_norm_rms_epsilon", float),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(file, arch, head_dim, theta),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    _check(file, arch, config)
    if arch == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    if arch == "gemma3":
        config |= _gemma3_settings(file, config)
    return config


def _supported_architecture(file: GgufFile) -> str:
    if (parts := file.get("split.count", int, 1)) > 1:
        raise ModelUnsupported(
            f"{file.path} is one of {parts} parts of a model: join them with llama-gguf-split"
        )
    arch = file.get("general.architecture", str)
    if arch not in ARCHITECTURES:
        raise file.unsupported(
            f"unsupported GGUF architecture {arch!r}; supported: {', '.join(ARCHITECTURES)}"
        )
    for name, neutral in NEUTRAL.items():
        value = file.metadata.get(f"{arch}.{name}", neutral)
        if value != neutral:
            raise file.unsupported(f"{name} {value!r} is not supported")
    return arch


def _check(file: GgufFile, arch: str, config: dict[str, Any]) -> None:
    """Raise if mlx-lm's module would take too long to build, or compute something else."""
    layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    if layers > len(file.tensors):
        raise file.broken(f"{len(file.tensors)} tensors for {layers} layers")
    if config["num_attention_heads"] % config["num_key_value_heads"] or head_dim % 2:
        raise file.broken(
            f"{config['num_attention_heads']} query heads of size {head_dim} for "
            f"{config['num_key_value_heads']} key-value heads"
        )
    for name in ("attention.value_length", "rope.dimension_count"):
        length = file.positive(f"{arch}.{name}", head_dim)
        if length != head_dim:
            raise file.unsupported(f"{name} {length} with keys of size {head_dim} is not supported")


def _gemma3_settings(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    layers, scaled_by = config["num_hidden_layers"], config["head_dim"]
    # Only the 27B model divides by hidden / heads instead of the actual head size.
    if layers == GEMMA3_27B_LAYERS:
        scaled_by = config["hidden_size"] // config["num_attention_heads"]
    return {
        "query_pre_attn_scalar": scaled_by,
        "rope_local_base_freq": file.get(
            "gemma3.rope.freq_base_swa", float, GEMMA3_LOCAL_ROPE_THETA
        ),
        "sliding_window": file.positive("gemma3.attention.sliding_window"),
        "sliding_window_pattern": _gemma3_pattern(file, layers),
    }


def _gemma3_pattern(file: GgufFile, layers: int) -> int:
    """The period of global layers: the last of every N layers is global."""
    key = "gemma3.attention.sliding_window_pattern"
    stored = file.metadata.get(key)
    if isinstance(stored, list):
        pattern = [*stored, False].index(False) + 1
        is_regular = stored == [(layer + 1) % pattern != 0 for layer in range(layers)]
    else:
        pattern, is_regular = file.positive(key, GEMMA3_PATTERN), True
    if not is_regular or pattern > layers:
        raise file.unsupported("this pattern of sliding windows is not supported")
    return pattern


def _rope_scaling(file: GgufFile, arch: str, head_dim: int, theta: float) -> dict[str, Any] | None:
    """The model's `rope_scaling`; None if positions are not scaled.

    Raises ModelUnsupported for a scaling that mlx-lm computes differently from llama.cpp.
    """
    # llama.cpp's defaults: without a type, scaling is linear; a factor of 0 means none.
    kind = file.get(f"{arch}.rope.scaling.type", str, "linear")
    factor = file.get(f"{arch}.rope.scaling.factor", float, 0.0)
    has_table = ROPE_FACTORS in file.tensors
    if kind == "none" or factor in (0.0, 1.0):
        return _llama3_scaling(file, head_dim, theta) if has_table else None
    known = ("linear",) if arch == "gemma3" else ("linear", "yarn")
    if kind not in known or factor < 0 or has_table:
        table = " with a table of factors" if has_table else ""
        raise file.unsupported(f"RoPE scaling {kind!r} by {factor}{table} is not supported")
    scaling = {"rope_type": kind, "type": kind, "factor": factor}
    if kind == "yarn":
        length = f"{arch}.rope.scaling.original_context_length"
        context = file.positive(f"{arch}.context_length")
        scaling["original_max_position_embeddings"] = file.positive(length, context)
    return scaling


def _llama3_scaling(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any] | None:
    """Recover Llama 3's scaling from the divisors of the frequencies.

    The lowest frequencies are divided by the factor itself, so it is the largest divisor.
    """
    tensor = file.tensors[ROPE_FACTORS]
    shape, kind = shape_of(tensor), tensor.tensor_type.name
    if kind != "F32" or shape != (head_dim // 2,):
        raise file.broken(f"tensor {ROPE_FACTORS!r} is {kind} of {shape}")
    stored = tensor.data.astype(np.float64)
    if (stored == 1.0).all():
        return None
    factor = float(stored.max())
    if not (np.isfinite(factor) and factor > 0):
        raise file.broken(f"tensor {ROPE_FACTORS!r} contains {factor}")
    # Source: https://github.com/meta-llama/llama-models, `apply_scaling`.
    turns = LLAMA3_ORIGINAL_CONTEXT / (2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim))
    share = (turns - LLAMA3_LOW_FREQ_FACTOR) / (LLAMA3_HIGH_FREQ_FACTOR - LLAMA3_LOW_FREQ_FACTOR)
    smooth = np.clip(share, 0, 1)
    if not np.allclose(stored, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
        raise file.unsupported("a table of RoPE factors that is not Llama 3's is not supported")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW_FREQ_FACTOR,
        "high_freq_factor": LLAMA3_HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": LLAMA3_ORIGINAL_CONTEXT,
    }
