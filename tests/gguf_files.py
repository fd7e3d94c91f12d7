"""Tiny GGUF files like those of llama.cpp's converter, and the weights they were made from. Tensor
names come from the gguf package, shapes from mlx-lm's models, nothing from `models.gguf`."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import TokenType, quants
from tokenizers import pre_tokenizers

from mlxchat.models.skeleton import build_skeleton, named_parameters

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or"]
PLAIN = sorted(pre_tokenizers.ByteLevel.alphabet()) + [each.replace(" ", "") for each in MERGES]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

KindOf = Callable[[str], Kind]


def tiny_hf_config(arch: str, **changes: Any) -> dict[str, Any]:
    """A configuration in Hugging Face's form, which the importer should recover."""
    config: dict[str, Any] = {
        "model_type": "gemma3_text" if arch == "gemma3" else arch,
        "hidden_size": 64,
        "num_hidden_layers": 6 if arch == "gemma3" else 2,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16 if arch in ("llama", "qwen2") else 32,
        "vocab_size": len(PLAIN) + 7,  # padded, as models often are
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50_000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
    }
    if arch == "llama":
        config |= {"attention_bias": False, "mlp_bias": False}
    if arch == "gemma3":
        config |= {
            "query_pre_attn_scalar": 32,
            "rope_local_base_freq": 10_000.0,
            "sliding_window": 8,
            "sliding_window_pattern": 6,
        }
    return config | changes


def tokenizer_metadata() -> dict[str, Any]:
    """The bytes, results of merges, an added word, control tokens."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*PLAIN, "<think>", *CONTROL],
        "tokenizer.ggml.token_type": [
            *(int(TokenType.NORMAL) for _ in PLAIN),
            int(TokenType.USER_DEFINED),
            *(int(TokenType.CONTROL) for _ in CONTROL),
        ],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": len(PLAIN) + 2,
        "tokenizer.ggml.eos_token_id": len(PLAIN) + 3,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def model_metadata(arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata that llama.cpp's converter writes for a configuration."""
    keys = {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        "rope.freq_base": "rope_theta",
    }
    if arch in ("qwen3", "gemma3"):
        keys |= {"attention.key_length": "head_dim", "attention.value_length": "head_dim"}
    if arch == "gemma3":
        keys |= {"attention.sliding_window": "sliding_window"}
    values = {f"{arch}.{theirs}": config[ours] for theirs, ours in keys.items()}
    return {"general.architecture": arch} | values


def change_layout(
    arch: str, name: str, array: np.ndarray, head_dim: int, *, back: bool = False
) -> np.ndarray:
    """A Hugging Face tensor as llama.cpp's converter changes it, or `back`."""
    if arch == "gemma3" and name.endswith("norm.weight"):
        return array - 1 if back else array + 1
    if arch != "llama" or not ("q_proj" in name or "k_proj" in name):
        return array
    # Rows of Hugging Face's: pairs (i, i + half) become adjacent.
    order = np.arange(len(array)).reshape(-1, 2, head_dim // 2).swapaxes(1, 2).ravel()
    return array[np.argsort(order) if back else order]


def random_hf_weights(config: dict[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random float32 weights for each parameter of mlx-lm's model."""
    model = build_skeleton(config)
    if config["tie_word_embeddings"] and "lm_head" in model:
        model.pop("lm_head")  # gemma3 makes one and drops it on loading
    shapes = {name: value.shape for name, value in named_parameters(model)}
    return {
        name: (rng.normal(size=shape) * 0.2 + ("norm" in name)).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }


def encode(array: np.ndarray, kind: Kind, rng: np.random.Generator) -> np.ndarray:
    """Store an array as `kind`. Kinds that the gguf package cannot write become random blocks."""
    with suppress(NotImplementedError):
        return quants.quantize(array, kind)
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (array.size // block_values, block_bytes), np.uint8)
    factors = (rng.uniform(0.5, 1, (len(blocks), 2)) * 1e-3).astype(np.float16).view(np.uint8)
    if kind is Kind.Q6_K:
        blocks[:, -2:] = factors[:, :2]
    else:
        blocks[:, :4] = factors
    return blocks.reshape(*array.shape[:-1], -1)


@dataclass
class TinyGguf:
    """The content of a file; change it, then `write` it."""

    arch: str
    config: dict[str, Any]
    metadata: dict[str, Any]
    tensors: dict[str, tuple[np.ndarray, Kind]]  # as stored
    weights: dict[str, np.ndarray] = field(default_factory=dict)  # unquantized, in HF's layout

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.arch)
        writer.kv_data[0].clear()  # the architecture, as in the metadata
        for key, value in self.metadata.items():
            kind = gguf.GGUFValueType.get_type(value)
            unsigned = kind is gguf.GGUFValueType.INT32
            writer.add_key_value(key, value, gguf.GGUFValueType.UINT32 if unsigned else kind)
        for name, (stored, kind) in self.tensors.items():
            writer.add_tensor(name, stored, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def tiny_gguf(arch: str, kind: Kind | KindOf = Kind.F32, **config_changes: Any) -> TinyGguf:
    """A tiny model's file. Matrices are stored as `kind`, or as it returns for their HF name."""
    rng = np.random.default_rng(0)
    config = tiny_hf_config(arch, **config_changes)
    number = getattr(gguf.MODEL_ARCH, arch.upper())
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    tiny = TinyGguf(arch, config, model_metadata(arch, config) | tokenizer_metadata(), {})
    for name, array in random_hf_weights(config, rng).items():
        stored_as = Kind.F32 if array.ndim == 1 else kind if isinstance(kind, Kind) else kind(name)
        stored = encode(change_layout(arch, name, array, config["head_dim"]), stored_as, rng)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        tiny.tensors[gguf_name] = stored, stored_as
        values = quants.dequantize(stored, stored_as)
        tiny.weights[name] = change_layout(arch, name, values, config["head_dim"], back=True)
    return tiny


def reference_logits(tiny: TinyGguf, tokens: mx.array) -> np.ndarray:
    """Logits of mlx-lm's model with the dense weights. tokens: (1, S)."""
    model: Any = build_skeleton(tiny.config)
    weights = {name: mx.array(value) for name, value in tiny.weights.items()}
    if "lm_head.weight" not in weights and "lm_head" in model:
        model.sanitize(weights)  # makes gemma3 use its embeddings
    model.load_weights(list(weights.items()))
    return np.array(model(tokens))
