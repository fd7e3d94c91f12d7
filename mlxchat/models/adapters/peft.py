"""Adapters in PEFT's layout, with the names and shapes of mlx-lm's low-rank modules.

LoRA and DoRA on linear layers and embeddings. Variants that change more than that are refused by
name. Source: `LoraConfig` and the checkpoint format in Hugging Face's PEFT.
"""

import math
import re
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxchat.errors import AdapterError
from mlxchat.models.adapters.adapter import FACTOR_A, FACTOR_B, MAGNITUDE, LowRank

PREFIX = "base_model.model."
# Parameter of PEFT → ours. PEFT stores both factors transposed.
PARAMETERS = {
    "lora_A.weight": FACTOR_A,
    "lora_B.weight": FACTOR_B,
    "lora_embedding_A": FACTOR_A,
    "lora_embedding_B": FACTOR_B,
    "lora_magnitude_vector": MAGNITUDE,
    "lora_magnitude_vector.weight": MAGNITUDE,
}
# Settings that change the weights or the computation in ways that low-rank modules cannot.
UNSUPPORTED = (
    "alora_invocation_tokens",
    "arrow_config",
    "layer_replication",
    "lora_bias",
    "megatron_config",
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
)
# These subtract from the weights of the model before training.
CHANGES_WEIGHTS = ("pissa", "olora", "corda", "loftq", "lora_ga")

_PLAIN = re.compile(r"[\w.-]+")
_NAME = re.compile(rf"(.+)\.({'|'.join(map(re.escape, PARAMETERS))})")


def from_peft(
    config: dict[str, Any], arrays: dict[str, mx.array], file: Path
) -> dict[str, LowRank]:
    """What each module gains, by its path. Raises AdapterError."""
    _check(config, file)
    by_path: dict[str, dict[str, mx.array]] = {}
    for name, array in arrays.items():
        match = _NAME.fullmatch(name.removeprefix(PREFIX))
        if match is None:
            raise AdapterError(f"{file}: cannot use {name}: only LoRA and DoRA are supported")
        by_path.setdefault(match[1], {})[PARAMETERS[match[2]]] = array.T
    dora = bool(config.get("use_dora"))
    found: dict[str, LowRank] = {}
    for path, ours in by_path.items():
        if FACTOR_A not in ours or FACTOR_B not in ours:
            raise AdapterError(f"{file}: {path} has only one of two factors")
        rank = ours[FACTOR_A].shape[-1]
        found[path] = LowRank(rank, _scale(config, path, rank, file), dora, ours)
    return found


def _check(config: dict[str, Any], file: Path) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"{file.parent}: PEFT's {kind} is not supported, only LORA is")
    for name in UNSUPPORTED:
        if config.get(name):
            raise AdapterError(f"{file.parent}: PEFT's {name} is not supported")
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{file.parent}: adapters with trained biases are not supported")
    start = str(config.get("init_lora_weights", "")).lower()
    if start.startswith(CHANGES_WEIGHTS):
        raise AdapterError(
            f"{file.parent}: init_lora_weights {start!r} changes the model itself: convert the "
            "adapter to plain LoRA with PEFT"
        )


def _scale(config: dict[str, Any], path: str, rank: int, file: Path) -> float:
    alpha = config.get("lora_alpha", 8)
    patterns = config.get("alpha_pattern") or {}
    try:
        for pattern, value in patterns.items():
            if _PLAIN.fullmatch(pattern) is None:
                raise AdapterError(f"{file.parent}: alpha_pattern {pattern!r} is not a plain name")
            if f".{path}".endswith(f".{pattern}"):
                alpha = value
                break
        return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise AdapterError(f"{file.parent}: invalid lora_alpha or alpha_pattern") from error
