"""A chat's default sampling: the settings recommended for the model.

generation_config.json takes precedence. Converted models often lack it or its sampling values, so a
table of families fills in the recommendations of their model cards.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxchat.models.model import Model
from mlxchat.models.skeleton import MODULE_OF_TYPE
from mlxchat.settings import recommended

Sampling = Mapping[str, Any]

# For families without a recommendation: llama.cpp's defaults.
# Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
GENERAL: Sampling = {"temp": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05}

# transformers' temperature if generation_config.json sets do_sample and no temperature.
TRANSFORMERS_TEMP = 1.0


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one of `types`, as in config.json, whose names match `name`.

    `thinking` and `plain` are fields of SamplingSettings: for a model that thinks before it
    answers, and for one that does not. An empty `plain` is the same as `thinking`.
    """

    types: tuple[str, ...]
    thinking: Sampling
    plain: Sampling = field(default_factory=dict[str, Any])
    name: str = ""


def _sampling(temp: float, top_p: float = 1.0, top_k: int = 0, **more: float) -> Sampling:
    return {"temp": temp, "top_p": top_p, "top_k": top_k, "min_p": 0.0, **more}


_DENSE = ("llama", "mistral", "qwen2", "qwen3")
_MISTRAL = ("llama", "mistral", "mistral3", "ministral3")

# The first match counts, since distilled models have another family's type.
# Source: the model card, or generation_config.json, at https://huggingface.co/ID.
FAMILIES = (
    # deepseek-ai/DeepSeek-R1-Distill-Llama-8B, deepseek-ai/DeepSeek-R1
    Family((*_DENSE, "deepseek_v3"), _sampling(0.6, 0.95), name=r"deepseek-r1"),
    # deepseek-ai/DeepSeek-V3.1, deepseek-ai/DeepSeek-V3.2
    Family(("deepseek_v3",), _sampling(0.6, 0.95)),
    Family(("deepseek_v32",), _sampling(1.0, 0.95)),
    # Qwen/QwQ-32B, Qwen/Qwen2.5-7B-Instruct
    Family(("qwen2",), _sampling(0.6, 0.95, 40), name=r"qwq"),
    Family(("qwen2", "qwen2_moe"), _sampling(0.7, 0.8, 20, repetition_penalty=1.05)),
    # Qwen/Qwen3-8B, Qwen/Qwen3-4B-Instruct-2507, Qwen/Qwen3-Next-80B-A3B-Instruct
    Family(
        ("qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe"),
        _sampling(0.6, 0.95, 20),
        _sampling(0.7, 0.8, 20),
    ),
    # Qwen/Qwen3.5-9B
    Family(("qwen3_5", "qwen3_5_moe"), _sampling(1.0, 0.95, 20), _sampling(0.7, 0.8, 20)),
    # HuggingFaceTB/SmolLM2-1.7B-Instruct, HuggingFaceTB/SmolLM3-3B
    Family(("llama",), _sampling(0.2, 0.9), name=r"smollm"),
    Family(("smollm3",), _sampling(0.6, 0.95)),
    # meta-llama/Llama-3.2-3B-Instruct, meta-llama/Llama-4-Scout-17B-16E-Instruct
    Family(("llama",), _sampling(0.6, 0.9), name=r"llama-?3"),
    Family(("llama4", "llama4_text"), _sampling(0.6, 0.9)),
    # google/gemma-3-27b-it, google/gemma-4-31B-it
    Family(("gemma3", "gemma3_text", "gemma3n", "gemma4", "gemma4_text"), _sampling(1.0, 0.95, 64)),
    # openai/gpt-oss-120b
    Family(("gpt_oss",), _sampling(1.0)),
    # mistralai/Magistral-Small-2509, mistralai/Mistral-Nemo-Instruct-2407,
    # mistralai/Mistral-Small-3.2-24B-Instruct-2506, mistralai/Mistral-7B-Instruct-v0.3
    Family(_MISTRAL, _sampling(0.7, 0.95), name=r"magistral|ministral.*reasoning"),
    Family(("llama", "mistral"), _sampling(0.3), name=r"mistral-nemo"),
    Family(_MISTRAL, _sampling(0.15), name=r"mistral-small|ministral|devstral"),
    Family(("llama", "mistral"), _sampling(0.7), name=r"mistral"),
    # microsoft/Phi-4-reasoning
    Family(("phi3",), _sampling(0.8, 0.95, 50), name=r"reasoning"),
    # zai-org/GLM-4.5-Air, zai-org/GLM-4.7-Flash
    Family(("glm4_moe", "glm4_moe_lite", "glm_moe_dsa"), _sampling(1.0, 0.95)),
    # MiniMaxAI/MiniMax-M2
    Family(("minimax",), _sampling(1.0, 0.95, 40)),
    # LiquidAI/LFM2-1.2B
    Family(("lfm2", "lfm2_moe"), _sampling(0.3, min_p=0.15, repetition_penalty=1.05)),
    # moonshotai/Kimi-K2-Instruct
    Family(("kimi_k2", "kimi_k25"), _sampling(0.6)),
    # ByteDance-Seed/Seed-OSS-36B-Instruct
    Family(("seed_oss",), _sampling(1.1, 0.95)),
)


def chat_sampling(model: Model, *, think: bool) -> dict[str, Any]:
    """Sampling for a chat, by field of SamplingSettings. `think`: whether thoughts are on.

    Greedy only if generation_config.json asks for it.
    """
    named = recommended(model.generation_config)
    if named.get("temp") is not None:
        return named
    family = _family_sampling(model, think=think)
    if model.generation_config.get("do_sample") is True:
        # The omitted values are transformers' defaults.
        return {"temp": family.get("temp", TRANSFORMERS_TEMP)} | named
    return {**(family or GENERAL), **named}


def _family_sampling(model: Model, *, think: bool) -> Sampling:
    """The table's sampling for the model; empty if its family is not listed."""
    name = Path(model.name).name
    thinks = "thinking" in name.lower() or (think and model.tokenizer.thinks)
    family = family_of(str(model.config.get("model_type")), name)
    if family is None:
        return {}
    return family.thinking if thinks or not family.plain else family.plain


def family_of(model_type: str, name: str) -> Family | None:
    """The model's family, by its own type or else the type whose module runs it."""
    for each in (model_type, MODULE_OF_TYPE.get(model_type, model_type)):
        for family in FAMILIES:
            if each in family.types and re.search(family.name, name, re.IGNORECASE):
                return family
    return None
