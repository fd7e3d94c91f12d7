"""Weight files: check that they are complete, and open their arrays by name without reading them.

Arrays are lazy: opening a file reads its header, evaluating an array reads the array.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxchat.errors import ModelBroken
from mlxchat.failures import device_failures, first_line
from mlxchat.files import check_not_lfs_pointer
from mlxchat.models.skeleton import read_json

# A header takes about 150 bytes per tensor, so this is enough for half a million tensors.
MAX_HEADER_BYTES = 100_000_000


def weight_files(directory: Path) -> list[Path]:
    """The directory's safetensors files. Raises ModelBroken if one is missing or truncated."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise ModelBroken(f"{index} has no weight_map")
        files = [directory / Path(name).name for name in sorted(set(shards.values()))]
    else:
        files = sorted(directory.glob("model*.safetensors"))
    if not files:
        raise ModelBroken(f"{directory} has no weights: model*.safetensors is missing")
    for file in files:
        check_safetensors(file)
    return files


def check_safetensors(file: Path) -> dict[str, Any]:
    """Return a file's header; raises ModelBroken if the file does not match it."""
    if not file.is_file():
        raise ModelBroken(f"{file} is missing: the download is incomplete; download it again")
    check_not_lfs_pointer(file)
    size_bytes = file.stat().st_size
    try:
        with file.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            if header_bytes > min(MAX_HEADER_BYTES, size_bytes):
                raise ValueError("its header is larger than the file")
            header = json.loads(stream.read(header_bytes))
        spans = list(_spans(header))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelBroken(f"{file} is not a safetensors file: {error}") from error
    needed_bytes = 8 + header_bytes + max((end for _, end in spans), default=0)
    if size_bytes < needed_bytes:
        raise ModelBroken(
            f"{file} is truncated: {size_bytes:,} of {needed_bytes:,} bytes; download it again"
        )
    return header


def _spans(header: dict[str, Any]) -> Iterator[tuple[int, int]]:
    for name, tensor in header.items():
        if name != "__metadata__":
            start, end = tensor["data_offsets"]
            if not 0 <= start <= end or math.prod(tensor["shape"]) < 0:
                raise ValueError(f"tensor {name} is outside the file")
            yield start, end


def needs_mlx_lms_loader(config: dict[str, Any], directory: Path) -> bool:
    """Whether only mlx-lm's own loader can unpack the weights."""
    if config.get("quantization") is not None:
        return False
    text_config = config.get("text_config") or {}
    return (
        bool(config.get("quantization_config"))
        or bool(text_config.get("quantization_config"))
        or bool(config.get("quantize_activations"))
        or (directory / "hf_quant_config.json").is_file()
    )


@contextmanager
def fitting(directory: Path) -> Iterator[None]:
    """Raise ModelBroken for errors caused by weights that do not match the model."""
    try:
        with device_failures():
            yield
    except (ValueError, RuntimeError, KeyError, TypeError, IndexError) as error:
        raise ModelBroken(
            f"the weights in {directory} do not match its config.json: {first_line(error)}"
        ) from error


def arrays_of(
    network: nn.Module, config: dict[str, Any], directory: Path, files: list[Path]
) -> dict[str, mx.array]:
    """The arrays for `network`, by its parameter names, lazily. Empty if only mlx-lm's loader can
    unpack them.

    Call it only once per network: mlx-lm's `sanitize` may change the network. If the files contain
    no output head, it removes the network's and uses the embedding.
    """
    if needs_mlx_lms_loader(config, directory):
        return {}
    arrays = load_arrays(files)
    sanitize: Any = getattr(network, "sanitize", None)
    if sanitize is None:
        return arrays
    with fitting(directory):
        return sanitize(arrays)


def load_arrays(files: list[Path]) -> dict[str, mx.array]:
    """Open the files and return their arrays by name, unread."""
    arrays: dict[str, mx.array] = {}
    for file in files:
        try:
            loaded = mx.load(str(file))
        except (RuntimeError, ValueError) as error:
            raise ModelBroken(f"cannot read {file}: {error}") from error
        assert isinstance(loaded, dict)
        arrays.update(loaded)
    return arrays
