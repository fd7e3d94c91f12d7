"""Choose a 16-bit dtype: float16 is more precise than bfloat16, but overflows at 65,504."""

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from mlxchat.models.skeleton import named_parameters, text_config

# Families whose activations are known to exceed 65,504.
# Source: https://unsloth.ai/blog/gemma3; other Gemmas scale their embeddings the same way.
OVERFLOWING = ("gemma", "recurrent_gemma")


def overflows_float16(config: dict[str, Any]) -> bool:
    """Whether the model's family overflows in float16."""
    types = (config["model_type"], text_config(config).get("model_type", ""))
    return any(str(each).startswith(OVERFLOWING) for each in types)


def hold_in_bfloat16(network: nn.Module) -> None:
    """Convert float16 weights to bfloat16, including the scales of packed weights. Shared arrays
    stay shared."""
    weights = [each for each in named_parameters(network) if each[1].dtype == mx.float16]
    cast = {id(array): array.astype(mx.bfloat16) for _, array in weights}
    network.load_weights([(name, cast[id(array)]) for name, array in weights], strict=False)


def turn_into_bfloat16(network: nn.Module) -> None:
    """Like `hold_in_bfloat16`, for evaluated weights: one at a time, so that only one is in memory
    twice."""
    arrays = {name: a for name, a in named_parameters(network) if a.dtype == mx.float16}
    sharing: dict[int, list[str]] = {}
    for name, array in arrays.items():
        sharing.setdefault(id(array), []).append(name)
    for names in sharing.values():
        array, *_ = [arrays.pop(name) for name in names]
        cast = array.astype(mx.bfloat16)
        mx.eval(cast)
        network.load_weights([(name, cast) for name in names], strict=False)


def first_logits_are_finite(network: nn.Module, config: dict[str, Any]) -> bool:
    """Whether the logits of a text's first token, which has the largest activations, are finite.
    Computes one token.

    Source: "Massive Activations in Large Language Models", https://arxiv.org/abs/2402.17762.
    """
    begin = config.get("bos_token_id")
    token = begin if isinstance(begin, int) else 0
    logits = network(mx.array([[token]]), cache=make_prompt_cache(network))
    # Some models exclude tokens with a logit of minus infinity.
    overflowed = mx.isnan(logits) | mx.isposinf(logits)
    return not bool(mx.any(overflowed).item())
