"""RoPE scaling: from llama.cpp's keys, or its table of factors, to Hugging Face's `rope_scaling`.

Maps only what mlx-lm computes the same way. Refuses every other scaling by name, because it would
run but give wrong results.
"""

from typing import Any

import numpy as np

from mlxchat.errors import ModelUnsupported
from mlxchat.models.gguf.read import GgufFile

FACTORS = "rope_freqs.weight"

# llama.cpp's converter uses these numbers for Llama 3's factors, whatever the model's length.
# Source: conversion/llama.py of ggml-org/llama.cpp.
LLAMA3_LOW_FREQ_FACTOR = 1.0
LLAMA3_HIGH_FREQ_FACTOR = 4.0
LLAMA3_ORIGINAL_CONTEXT = 8192

# YaRN settings that mlx-lm's module does not have, with their neutral values.
YARN_NEUTRAL = {
    "attn_factor": (1.0,),
    "yarn_ext_factor": (-1.0, 1.0),
    "yarn_attn_factor": (1.0,),
    "yarn_log_multiplier": (0.0,),
}


def rope_scaling(file: GgufFile, arch: str, head_dim: int, theta: float) -> dict[str, Any] | None:
    """The model's `rope_scaling`; None if positions are not scaled.

    Raises ModelUnsupported for a scaling that mlx-lm computes differently from llama.cpp.
    """
    # llama.cpp's defaults: without a type, scaling is linear; a factor of 0 means none.
    kind = file.text(f"{arch}.rope.scaling.type", "linear")
    factor = file.number(
        f"{arch}.rope.scaling.factor", file.number(f"{arch}.rope.scale_linear", 0.0)
    )
    scaled = kind != "none" and factor not in (0.0, 1.0)
    if FACTORS in file.tensors:
        if scaled or arch != "llama":
            raise _unsupported(file, f"RoPE scaling {kind!r} together with a table of factors")
        return _llama3(file, head_dim, theta)
    if not scaled:
        return None
    if factor < 0:
        raise file.broken(f"the RoPE scaling factor is {factor}")
    if kind == "linear":
        return {"rope_type": "linear", "type": "linear", "factor": factor}
    if kind == "yarn" and arch != "gemma3":
        return _yarn(file, arch, factor)
    raise _unsupported(file, f"RoPE scaling {kind!r}")


def _unsupported(file: GgufFile, what: str) -> ModelUnsupported:
    return ModelUnsupported(f"{file.path}: {what} is not supported")


def _yarn(file: GgufFile, arch: str, factor: float) -> dict[str, Any]:
    prefix = f"{arch}.rope.scaling"
    for name, neutral in YARN_NEUTRAL.items():
        if (value := file.number(f"{prefix}.{name}", neutral[0])) not in neutral:
            raise _unsupported(file, f"YaRN with {name} {value}")
    context = file.integer(f"{arch}.context_length")
    return {
        "rope_type": "yarn",
        "type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": file.integer(
            f"{prefix}.original_context_length", context
        ),
        "beta_fast": file.number(f"{prefix}.yarn_beta_fast", 32.0),
        "beta_slow": file.number(f"{prefix}.yarn_beta_slow", 1.0),
    }


def _llama3(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any] | None:
    """Recover Llama 3's scaling from the divisors of the frequencies.

    The lowest frequencies are divided by the factor itself, so it is the largest divisor.
    """
    tensor = file.tensors[FACTORS]
    if tensor.kind.name != "F32" or tensor.shape != (head_dim // 2,):
        raise file.broken(f"tensor {FACTORS!r} is {tensor.kind.name} of shape {tensor.shape}")
    stored = file.read_rows(tensor, 0, tensor.shape[0]).view("<f4")[:, 0].astype(np.float64)
    if (stored == 1.0).all():
        return None
    factor = float(stored.max())
    if not (np.isfinite(factor) and factor > 0):
        raise file.broken(f"tensor {FACTORS!r} contains {factor}")
    if not np.allclose(stored, _llama3_factors(factor, head_dim, theta), rtol=1e-4):
        raise _unsupported(file, "a table of RoPE factors that is not Llama 3's")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW_FREQ_FACTOR,
        "high_freq_factor": LLAMA3_HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": LLAMA3_ORIGINAL_CONTEXT,
    }


def _llama3_factors(factor: float, head_dim: int, theta: float) -> np.ndarray:
    """Llama 3's divisors of the head_dim / 2 frequencies.

    Source: https://github.com/meta-llama/llama-models, `apply_scaling`.
    """
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = LLAMA3_ORIGINAL_CONTEXT / wavelengths
    share = (turns - LLAMA3_LOW_FREQ_FACTOR) / (LLAMA3_HIGH_FREQ_FACTOR - LLAMA3_LOW_FREQ_FACTOR)
    smooth = np.clip(share, 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)
