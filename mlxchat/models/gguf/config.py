"""Turns a GGUF file's metadata into the config.json that mlx-lm reads, for known architectures.

Refuses, by name, anything that would run but give wrong results: other architectures, experts, and
settings that mlx-lm's modules do not support.
"""

from typing import Any

import numpy as np

from mlxchat.errors import ModelUnsupported
from mlxchat.models.gguf.read import GgufFile

# GGUF architecture → Hugging Face's model type, which selects mlx-lm's module, and class.
ARCHITECTURES = {
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
}

# Settings that change the arithmetic but that mlx-lm's modules lack, with their neutral values.
NEUTRAL: dict[str, tuple[float, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.temperature_scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "pooling_type": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
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
    """The model's part of config.json, without quantization and token ids. Raises ModelUnsupported
    for a model that cannot be converted."""
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
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
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
        value = file.metadata.get(f"{arch}.{name}", neutral[0])
        if value not in neutral:
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
    if not isinstance(stored, list):
        pattern, regular = file.positive(key, GEMMA3_PATTERN), True
    else:
        is_local = list(map(bool, stored))
        pattern = is_local.index(False) + 1 if False in is_local else layers + 1
        regular = is_local == [(layer + 1) % pattern != 0 for layer in range(layers)]
    if not regular or pattern > layers:
        raise file.unsupported("this pattern of sliding windows is not supported")
    return pattern


def _rope_scaling(file: GgufFile, arch: str, head_dim: int, theta: float) -> dict[str, Any] | None:
    """The model's `rope_scaling`; None if positions are not scaled.

    Raises ModelUnsupported for a scaling that mlx-lm computes differently from llama.cpp.
    """
    # llama.cpp's defaults: without a type, scaling is linear; a factor of 0 means none.
    prefix = f"{arch}.rope.scaling"
    kind = file.get(f"{prefix}.type", str, "linear")
    linear = file.get(f"{arch}.rope.scale_linear", float, 0.0)
    factor = file.get(f"{prefix}.factor", float, linear)
    scaled = kind != "none" and factor not in (0.0, 1.0)
    if ROPE_FACTORS in file.tensors and arch == "llama" and not scaled:
        return _llama3_scaling(file, head_dim, theta)
    if ROPE_FACTORS in file.tensors:
        raise file.unsupported(
            f"RoPE scaling {kind!r} together with a table of factors is not supported"
        )
    if not scaled:
        return None
    if kind == "linear" and factor > 0:
        return {"rope_type": "linear", "type": "linear", "factor": factor}
    if kind != "yarn" or arch == "gemma3" or factor < 0:
        raise file.unsupported(f"RoPE scaling {kind!r} by {factor} is not supported")
    context = file.positive(f"{arch}.context_length")
    return {
        "rope_type": "yarn",
        "type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": file.positive(
            f"{prefix}.original_context_length", context
        ),
        "beta_fast": file.get(f"{prefix}.yarn_beta_fast", float, 32.0),
        "beta_slow": file.get(f"{prefix}.yarn_beta_slow", float, 1.0),
    }


def _llama3_scaling(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any] | None:
    """Recover Llama 3's scaling from the divisors of the frequencies.

    The lowest frequencies are divided by the factor itself, so it is the largest divisor.
    """
    tensor = file.tensors[ROPE_FACTORS]
    if tensor.kind.name != "F32" or tensor.shape != (head_dim // 2,):
        raise file.broken(f"tensor {ROPE_FACTORS!r} is {tensor.kind.name} of {tensor.shape}")
    stored = tensor.data.astype(np.float64)
    if (stored == 1.0).all():
        return None
    factor = float(stored.max())
    if not (np.isfinite(factor) and factor > 0):
        raise file.broken(f"tensor {ROPE_FACTORS!r} contains {factor}")
    # Source: https://github.com/meta-llama/llama-models, `apply_scaling`.
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = LLAMA3_ORIGINAL_CONTEXT / wavelengths
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
