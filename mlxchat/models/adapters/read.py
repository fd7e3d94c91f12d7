"""Read an adapter's directory. Arrays stay unread until a network uses them.

Source: mlx-lm's `load_adapters` and `save_adapter`, mlx_lm/tuner/utils.py and trainer.py.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxchat.errors import AdapterError
from mlxchat.models.adapters.adapter import FACTOR_A, FACTOR_B, MAGNITUDE, Adapter, LowRank
from mlxchat.models.adapters.find import FoundAdapter
from mlxchat.models.adapters.peft import from_peft
from mlxchat.models.hub_cache import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from mlxchat.models.skeleton import read_json
from mlxchat.models.weights import check_safetensors, load_arrays

WEIGHTS, PEFT_WEIGHTS = ADAPTER_WEIGHTS
# Formats that could be meant as an adapter, and what to do instead.
UNREADABLE = {
    "adapter_model.bin": "a pickle, which can run code: save it as safetensors",
    "adapters.npz": "from an old mlx-lm: save it as safetensors",
}

_LOW_RANK = re.compile(rf"(.+?)\.((?:{FACTOR_A}|{FACTOR_B}|{MAGNITUDE})(?:\.\d+)?)")


def read_adapter(found: FoundAdapter) -> Adapter:
    """The contents of an adapter, in mlx-lm's layout or in PEFT's.

    Raises AdapterError for anything else, ModelBroken if a file is missing, truncated or damaged.
    """
    name, directory = found.name, found.directory
    config = read_json(directory / ADAPTER_CONFIG)
    file = weights_file(directory)
    check_safetensors(file)
    arrays = load_arrays([file])
    if not arrays:
        raise AdapterError(f"{file} has no arrays")
    digest = _digest(directory / ADAPTER_CONFIG, file)
    if file.name == PEFT_WEIGHTS:
        low_rank = from_peft(config, arrays, file)
        return Adapter(name, low_rank, {}, digest, _text(config, "base_model_name_or_path"))
    base = _text(config, "model")
    if _kind(config, file) == "full":
        return Adapter(name, {}, arrays, digest, base)
    return Adapter(name, _low_rank(config, arrays, file), {}, digest, base)


def weights_file(directory: Path) -> Path:
    """The directory's file of arrays. Raises AdapterError if there is none that can be read."""
    for name in (WEIGHTS, PEFT_WEIGHTS):
        if (directory / name).is_file():
            return directory / name
    for name, why in UNREADABLE.items():
        if (directory / name).is_file():
            raise AdapterError(f"{directory / name} is {why}")
    raise AdapterError(f"{directory} has no {WEIGHTS} or {PEFT_WEIGHTS}")


def _kind(config: dict[str, Any], file: Path) -> str:
    kind = config.get("fine_tune_type", "lora")
    if kind not in ("lora", "dora", "full"):
        raise AdapterError(f"{file.parent / ADAPTER_CONFIG}: unknown fine_tune_type {kind!r}")
    return kind


def _low_rank(
    config: dict[str, Any], arrays: dict[str, mx.array], file: Path
) -> dict[str, LowRank]:
    parameters: Any = config.get("lora_parameters")
    try:
        rank, scale = int(parameters["rank"]), float(parameters["scale"])
        if rank < 1:
            raise ValueError(rank)
    except (KeyError, TypeError, ValueError) as error:
        raise AdapterError(
            f"{file.parent / ADAPTER_CONFIG}: lora_parameters need a rank and a scale"
        ) from error
    dora = _kind(config, file) == "dora"
    found: dict[str, LowRank] = {}
    for name, array in arrays.items():
        match = _LOW_RANK.fullmatch(name)
        if match is None:
            raise AdapterError(f"{file}: {name} is not part of an adapter")
        found.setdefault(match[1], LowRank(rank, scale, dora)).arrays[match[2]] = array
    return found


def _text(config: dict[str, Any], name: str) -> str | None:
    value = config.get(name)
    return value if isinstance(value, str) and value else None


def _digest(*files: Path) -> str:
    """Identifies the contents of both files, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "blake2b").digest())
    return digest.hexdigest()
