"""Turns a GGUF file's metadata into the config.json that mlx-lm reads, for known architectures.

Refuses, by name, anything that would run but give wrong results: other architectures, experts, and
settings that mlx-lm's modules do not support.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxchat.errors import ModelUnsupported
from mlxchat.models.gguf.read import GgufFile
from mlxchat.models.gguf.rope import rope_scaling

# GGUF architecture → Hugging Face's model type, which selects mlx-lm's module, and class.
ARCHITECTURES = {
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
}

# Architectures whose activations can overflow float16.
TRAINED_IN_BFLOAT16 = {"gemma3"}

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
}

# Gemma 3, if the file does not specify it. Source: src/models/gemma3.cpp of ggml-org/llama.cpp.
GEMMA3_PATTERN = 6
GEMMA3_LOCAL_ROPE_THETA = 10_000.0
GEMMA3_27B_LAYERS = 62


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes that determine all tensor shapes."""

    arch: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


def read_dimensions(file: GgufFile) -> Dimensions:
    """Read the model's sizes. Raises ModelUnsupported for a model that cannot be converted."""
    arch = _supported_architecture(file)
    heads = _positive(file, f"{arch}.attention.head_count")
    hidden = _positive(file, f"{arch}.embedding_length")
    head_dim = _positive(file, f"{arch}.attention.key_length", hidden // heads)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise file.broken("tensor 'token_embd.weight' is missing")
    dims = Dimensions(
        arch=arch,
        layers=_positive(file, f"{arch}.block_count"),
        hidden=hidden,
        intermediate=_positive(file, f"{arch}.feed_forward_length"),
        heads=heads,
        kv_heads=_positive(file, f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab=embedding.shape[0],
    )
    _check_dimensions(file, dims)
    return dims


def _supported_architecture(file: GgufFile) -> str:
    parts = file.integer("split.count", 1)
    if parts > 1:
        raise ModelUnsupported(
            f"{file.path} is one of {parts} parts of a model: join them with llama-gguf-split"
        )
    arch = file.text("general.architecture")
    if arch not in ARCHITECTURES:
        raise ModelUnsupported(
            f"{file.path}: unsupported GGUF architecture {arch!r}; supported: "
            f"{', '.join(ARCHITECTURES)}"
        )
    for name, neutral in NEUTRAL.items():
        value = file.metadata.get(f"{arch}.{name}", neutral[0])
        if not isinstance(value, int | float) or value not in neutral:
            raise ModelUnsupported(
                f"{file.path}: {arch} models with {name} {value!r} are not supported"
            )
    return arch


def _positive(file: GgufFile, key: str, default: int | None = None) -> int:
    if isinstance(file.metadata.get(key), np.ndarray):
        raise ModelUnsupported(f"{file.path}: a different {key} for each layer is not supported")
    value = file.integer(key, default)
    if value < 1:
        raise file.broken(f"{key} is {value}")
    return value


def _check_dimensions(file: GgufFile, dims: Dimensions) -> None:
    if dims.layers > len(file.tensors):
        raise file.broken(f"{len(file.tensors)} tensors for {dims.layers} layers")
    if dims.heads % dims.kv_heads or dims.head_dim % 2:
        raise file.broken(
            f"{dims.heads} query heads of size {dims.head_dim} for {dims.kv_heads} key-value heads"
        )
    for name in ("attention.value_length", "rope.dimension_count"):
        length = _positive(file, f"{dims.arch}.{name}", dims.head_dim)
        if length != dims.head_dim:
            raise ModelUnsupported(
                f"{file.path}: {name} {length} with keys of size {dims.head_dim} is not supported"
            )
    if dims.arch == "qwen2" and dims.head_dim * dims.heads != dims.hidden:
        raise ModelUnsupported(
            f"{file.path}: mlx-lm's qwen2 does not support heads of size {dims.head_dim}"
        )


def build_config(file: GgufFile, dims: Dimensions) -> dict[str, Any]:
    """The model's part of config.json, without quantization and token ids."""
    arch = dims.arch
    model_type, class_name = ARCHITECTURES[arch]
    theta = file.number(f"{arch}.rope.freq_base", 10_000.0)
    if theta <= 0:
        raise file.broken(f"the RoPE base is {theta}")
    return {
        "model_type": model_type,
        "architectures": [class_name],
        "hidden_size": dims.hidden,
        "num_hidden_layers": dims.layers,
        "intermediate_size": dims.intermediate,
        "num_attention_heads": dims.heads,
        "num_key_value_heads": dims.kv_heads,
        "head_dim": dims.head_dim,
        "vocab_size": dims.vocab,
        "max_position_embeddings": _positive(file, f"{arch}.context_length"),
        "rms_norm_eps": file.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": rope_scaling(file, arch, dims.head_dim, theta),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **_own_settings(file, dims),
    }


def _own_settings(file: GgufFile, dims: Dimensions) -> dict[str, Any]:
    if dims.arch == "llama":
        return {
            "attention_bias": "blk.0.attn_q.bias" in file.tensors,
            "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        }
    if dims.arch == "gemma3":
        return _gemma3_settings(file, dims)
    return {}


def _gemma3_settings(file: GgufFile, dims: Dimensions) -> dict[str, Any]:
    # Only the 27B model divides by hidden / heads instead of the actual head size.
    scaled_by = dims.hidden // dims.heads if dims.layers == GEMMA3_27B_LAYERS else dims.head_dim
    return {
        "query_pre_attn_scalar": scaled_by,
        "rope_local_base_freq": file.number("gemma3.rope.freq_base_swa", GEMMA3_LOCAL_ROPE_THETA),
        "sliding_window": _positive(file, "gemma3.attention.sliding_window"),
        "sliding_window_pattern": _gemma3_pattern(file, dims),
    }


def _gemma3_pattern(file: GgufFile, dims: Dimensions) -> int:
    """The period of global layers: the last of every N layers is global."""
    key = "gemma3.attention.sliding_window_pattern"
    stored = file.metadata.get(key)
    if isinstance(stored, np.ndarray):
        is_local = stored.astype(bool).tolist()
        pattern = is_local.index(False) + 1 if False in is_local else dims.layers + 1
        regular = is_local == [(layer + 1) % pattern != 0 for layer in range(dims.layers)]
    else:
        pattern, regular = _positive(file, key, GEMMA3_PATTERN), True
    if not regular or pattern > dims.layers:
        raise ModelUnsupported(
            f"{file.path}: mlx-lm's gemma3 does not support this pattern of sliding windows"
        )
    return pattern
