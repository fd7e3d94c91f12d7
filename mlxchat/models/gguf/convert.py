"""Convert one GGUF file into an empty directory: configuration, tokenizer, then weights.

All checks come before the first weight is read. `store` makes the conversion atomic.
"""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from mlxchat.errors import ModelError
from mlxchat.files import force_to_disk
from mlxchat.models.gguf.config import TRAINED_IN_BFLOAT16, build_config, read_dimensions
from mlxchat.models.gguf.pack import GROUP_SIZE, is_packed, packed_bits
from mlxchat.models.gguf.read import GgufFile, Tensor, open_gguf
from mlxchat.models.gguf.source import FORMAT_VERSION, ORIGIN, Source
from mlxchat.models.gguf.tensors import Parameter, match_tensors
from mlxchat.models.gguf.tokenizer import build_tokenizer, tokenizer_config
from mlxchat.models.gguf.vocabulary import Vocabulary, read_vocabulary
from mlxchat.models.gguf.weights import layout_bytes, layout_of, write_weights

DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

# generation_config.json's names for the metadata.
SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}

Matched = list[tuple[Tensor, Parameter]]


def convert(source: Source, directory: Path) -> None:
    """Write the model of `source` into `directory`, and every file to the disk.

    Raises ModelBroken, ModelUnsupported, ModelError if the disk is too full, OSError if a file
    cannot be written.
    """
    with open_gguf(source.path) as file:
        dims = read_dimensions(file)
        config = build_config(file, dims)
        matched = match_tensors(file, dims)
        vocabulary = read_vocabulary(file, dims.vocab)
        tokenizer = build_tokenizer(file, vocabulary)

        _write(directory / "tokenizer.json", tokenizer.to_str())
        _write_json(directory / "tokenizer_config.json", tokenizer_config(file, vocabulary))
        _write_json(directory / "generation_config.json", _token_ids(vocabulary) | _sampling(file))
        _write_json(
            directory / "config.json",
            config
            | _token_ids(vocabulary)
            | _storage(matched, dims.arch)
            | {ORIGIN: _origin(source)},
        )
        _require_room(file, matched, directory)
        write_weights(file, matched, directory / "model.safetensors")


def _sampling(file: GgufFile) -> dict[str, Any]:
    """What the model's makers recommend, if the file has it.

    Source: https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py
    """
    values = {name: file.metadata.get(key) for name, key in SAMPLING_KEYS.items()}
    # Stored in float32, in which 0.95 is 0.949999988.
    numbers = {name: each for name, each in values.items() if isinstance(each, int | float)}
    return {name: round(each, 6) for name, each in numbers.items()}


def _token_ids(vocabulary: Vocabulary) -> dict[str, Any]:
    ids = {
        "bos_token_id": vocabulary.bos,
        "eos_token_id": vocabulary.ends or None,
        "pad_token_id": vocabulary.padding,
    }
    return {name: value for name, value in ids.items() if value is not None}


def _storage(matched: Matched, arch: str) -> dict[str, Any]:
    """The dtype to run the model in, and the bit widths of quantized modules.

    The most common width is the default; modules with another are listed by name.
    """
    bits_of = {
        parameter.module: packed_bits(tensor.kind)
        for tensor, parameter in matched
        if is_packed(tensor.kind)
    }
    if not bits_of:
        return {"torch_dtype": _running_dtype(matched, arch, DTYPE_NAMES[matched[0][0].kind.name])}
    usual = Counter(bits_of.values()).most_common(1)[0][0]
    others = {module: _quantized(bits) for module, bits in bits_of.items() if bits != usual}
    return {
        "torch_dtype": _running_dtype(matched, arch, "float16"),
        "quantization": _quantized(usual) | others,
    }


def _running_dtype(matched: Matched, arch: str, stored: str) -> str:
    """`stored`, or bfloat16 if float16 would overflow or the file shows that the model was trained
    in bfloat16. Scales stay float16 in the file; on a CPU they become float32."""
    from_bfloat16 = any(tensor.kind.name == "BF16" for tensor, _ in matched)
    wide = from_bfloat16 or arch in TRAINED_IN_BFLOAT16
    return "bfloat16" if stored == "float16" and wide else stored


def _quantized(bits: int) -> dict[str, Any]:
    return {"group_size": GROUP_SIZE, "bits": bits, "mode": "affine"}


def _origin(source: Source) -> dict[str, Any]:
    return {
        "source": str(source.path.absolute()),
        "source_bytes": source.size_bytes,
        "format_version": FORMAT_VERSION,
    }


def _require_room(file: GgufFile, matched: Matched, directory: Path) -> None:
    needed_bytes = layout_bytes(layout_of(matched))
    free_bytes = shutil.disk_usage(directory).free
    if needed_bytes > free_bytes:
        raise ModelError(
            f"converting {file.path} takes {needed_bytes / 1e9:.1f} GB in {directory.parent}, "
            f"but only {free_bytes / 1e9:.1f} GB are free"
        )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    _write(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        force_to_disk(stream.fileno())
