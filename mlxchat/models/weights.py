"""Weight files: open their arrays by name without reading them, and fit them to the model.

Arrays are lazy: opening a file reads its header, evaluating an array reads the array.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx import nn

from mlxchat.errors import MlxchatError, ModelBroken, device_failures, first_line
from mlxchat.files import check_not_lfs_pointer
from mlxchat.models.skeleton import named_parameters

INCOMPLETE = ": the download is incomplete; download it again"


def load_arrays(directory: Path) -> dict[str, mx.array]:
    """The arrays, by name and unread, of the directory's safetensors files: all that mlx-lm reads,
    whatever an index may list. Raises ModelBroken if there are none, or one is damaged."""
    files = sorted(directory.glob("model*.safetensors"))
    if not files:
        raise ModelBroken(f"{directory} has no weights: model*.safetensors is missing")
    return {name: array for file in files for name, array in open_arrays(file).items()}


def open_arrays(file: Path) -> dict[str, mx.array]:
    """The arrays of a safetensors file, by name and unread. Raises ModelBroken if it is damaged."""
    check_not_lfs_pointer(file)
    try:
        return cast(dict[str, mx.array], mx.load(str(file)))
    except (RuntimeError, ValueError) as error:
        reason = first_line(error).removeprefix("[load_safetensors] ")
        raise ModelBroken(f"{file} is damaged; download it again: {reason}") from error


def require_weights(network: nn.Module, arrays: dict[str, mx.array], directory: Path) -> None:
    """Raise ModelBroken if the files in `directory` lack weights of the unquantized `network`."""
    missing = sorted({name for name, _ in named_parameters(network)} - arrays.keys())
    if missing:
        with fitting(directory):
            raise ValueError(f"Missing {len(missing)} parameters: {missing[0]}")


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
        if lacking and (missing := _missing_files(directory)):
            raise ModelBroken(f"{directory / missing[0]} is missing{INCOMPLETE}") from error
        how = "" if quantized_by is None else f", quant_method {quantized_by!r}"
        raise ModelBroken(
            f"the weights in {directory} do not match its config.json{how}: {_reason(error)}"
        ) from error


def _missing_files(directory: Path) -> list[str]:
    """The weight files that the index names and that are missing; none if it is of others."""
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
    is_list = first.endswith(": ") and names
    return f"{first}{names[0].rstrip(',.')}" if is_list else first_line(error)


def arrays_of(
    network: nn.Module, config: dict[str, Any], directory: Path, stored: dict[str, mx.array]
) -> dict[str, mx.array]:
    """The arrays for `network`, by its parameter names, from those `stored` in the directory, also
    lazily. Empty if only mlx-lm's loader can unpack them.

    Call it only once per network: mlx-lm's `sanitize` may change the network. If the files contain
    no output head, it removes the network's and uses the embedding.
    """
    if needs_mlx_lms_loader(config):
        return {}
    with fitting(directory):
        return getattr(network, "sanitize", dict)(stored)
