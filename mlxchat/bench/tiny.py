"""A network with random weights, so small that the cost of the code around it shows."""

from dataclasses import replace
from typing import Any

import mlx.core as mx

from mlxchat.models.model import Model
from mlxchat.models.skeleton import build_skeleton


def tiny_config(layers: int = 2, width: int = 32, vocabulary: int = 288) -> dict[str, Any]:
    """A llama's configuration, with a trained context of 4,096 tokens."""
    return {
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": width * 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        "eos_token_id": 258,
    }


def with_tiny_network(model: Model, config: dict[str, Any]) -> Model:
    """The same tokenizer with a random network of `config`'s shape; its output is noise."""
    mx.random.seed(0)
    network = build_skeleton(config)
    mx.eval(network.parameters())
    network.eval()
    return replace(
        model,
        name="tiny",
        network=network,
        dtype=mx.float32,
        context_length=config["max_position_embeddings"],
        config=config,
    )
