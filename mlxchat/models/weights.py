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

from mlxchat.errors import MlxchatError, ModelBroken, device_failures, first_line
from mlxchat.files import check_not_lfs_pointer
from mlxchat.models.skeleton import named_parameters

# A header takes about 150 bytes per tensor, so this is enough for half a million tensors.
MAX_HEADER_BYTES = 100_000_000

INCOMPLETE = ": the download is incomplete; download it again"


def weight_files(directory: Path) -> list[Path]:
    """The directory's safetensors files: all that mlx-lm reads, whatever an index may list. Raises
    ModelBroken if there are none, or one is truncated."""
    files = sorted(directory.glob("model*.safetensors"))
    if not files:
        raise ModelBroken(f"{directory} has no weights: model*.safetensors is missing")
    for file in files:
        check_safetensors(file)
    return files


def require_weights(network: nn.Module, arrays: dict[str, mx.array], directory: Path) -> None:
    """Raise ModelBroken if the files in `directory` lack weights of the unquantized `network`."""
    missing = sorted({name for name, _ in named_parameters(network)} - arrays.keys())
    if missing:
        with fitting(directory):
            raise ValueError(f"Missing {len(missing)} parameters: {missing[0]}")


def check_safetensors(file: Path) -> dict[str, Any]:
    """Return a file's header; raises ModelBroken if the file does not match it."""
    if not file.is_file():
        raise ModelBroken(f"{file} is missing{INCOMPLETE}")
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


def needs_mlx_lms_loader(config: dict[str, Any]) -> bool:
    """Whether only mlx-lm's own loader can unpack the weights."""
    packed_otherwise = config.get("quantization") is None and config.get("quantization_config")
    return bool(packed_otherwise or config.get("quantize_activations"))


@contextmanager
def fitting(directory: Path, quantized_by: object = None) -> Iterator[None]:
    """Raise ModelBroken for errors caused by weights that do not match the model, whatever its code
    makes of them. `quantized_by` is the method that config.json names."""
    try:
        with device_failures(of_model=False):
            yield
    except MlxchatError:
        raise
    except Exception as error:
        # KeyError comes from models that join the weights of their experts.
        lacking = isinstance(error, KeyError) or str(error).startswith("Missing")
        missing = _missing_files(directory) if lacking else []
        if missing:
            raise ModelBroken(f"{directory / missing[0]} is missing{INCOMPLETE}") from error
        how = "" if quantized_by is None else f", quant_method {quantized_by!r}"
        raise ModelBroken(
            f"the weights in {directory} do not match its config.json{how}: {_reason(error)}"
        ) from error


def _missing_files(directory: Path) -> list[str]:
    """The weight files that seem to be missing, by the index; none if that names none of the files
    that are here, and so belongs to others."""
    here = {path.name for path in directory.glob("model*.safetensors")}
    try:
        index = json.loads((directory / "model.safetensors.index.json").read_text("utf-8"))
        listed = {str(name) for name in index["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return sorted(listed - here) if here & listed else []


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, NameError):
        # A slip of mlx-lm's in that case.
        return "none are packed that way; remove quantization_config if it is left over"
    first, *names = str(error).splitlines() or [""]
    # "Missing 3 parameters:", and a line for each.
    return (
        f"{first}{names[0].rstrip(',.')}" if first.endswith(": ") and names else first_line(error)
    )


def arrays_of(
    network: nn.Module, config: dict[str, Any], directory: Path, files: list[Path]
) -> dict[str, mx.array]:
    """The arrays for `network`, by its parameter names, lazily. Empty if only mlx-lm's loader can
    unpack them.

    Call it only once per network: mlx-lm's `sanitize` may change the network. If the files contain
    no output head, it removes the network's and uses the embedding.
    """
    if needs_mlx_lms_loader(config):
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
