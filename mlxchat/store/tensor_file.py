"""Named tensors and facts in one file, in an open format that detects any damage.

The format is safetensors. Its metadata contains the facts, and a checksum of them and all tensors.
`snapshot` knows what the tensors mean. The checksum is compared before anything else is believed.

Source: https://github.com/huggingface/safetensors for the format.
"""

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import mlx.core as mx
import numpy as np

from mlxchat.errors import SnapshotBroken
from mlxchat.files import open_to_read, write_atomically

MAX_HEADER_BYTES = 1 << 24

# Safetensors' name of a type, MLX's type, and the numpy type of the same size for its bits.
TYPES: dict[str, tuple[mx.Dtype, Any]] = {
    "F32": (mx.float32, np.float32),
    "F16": (mx.float16, np.float16),
    "BF16": (mx.bfloat16, np.uint16),
    "I32": (mx.int32, np.int32),
    "U32": (mx.uint32, np.uint32),
    "I64": (mx.int64, np.int64),
    "U8": (mx.uint8, np.uint8),
    "BOOL": (mx.bool_, np.bool_),
}
NAME_OF_TYPE = {dtype: name for name, (dtype, _) in TYPES.items()}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor's bits, readable from any thread; an MLX array belongs to one thread."""

    type: str
    shape: tuple[int, ...]
    bits: np.ndarray


Name = TypeVar("Name")


def hold(arrays: Mapping[Name, mx.array]) -> dict[Name, Tensor]:
    """Evaluate the arrays, all together because each evaluation waits for the device, and return
    their bits. Copies only arrays that are not contiguous."""
    in_order = {name: _in_order(array) for name, array in arrays.items()}
    mx.eval(list(in_order.values()))
    return {
        name: Tensor(
            NAME_OF_TYPE[array.dtype], tuple(array.shape), np.array(in_order[name], copy=False)
        )
        for name, array in arrays.items()
    }


def _in_order(array: mx.array) -> mx.array:
    in_order = mx.contiguous(array)
    return in_order.view(mx.uint16) if array.dtype == mx.bfloat16 else in_order


def empty(shape: tuple[int, ...], dtype: mx.Dtype) -> Tensor:
    """An uninitialized tensor."""
    name = NAME_OF_TYPE[dtype]
    return Tensor(name, shape, np.zeros(shape, TYPES[name][1]))


def loaded(tensors: dict[Name, Tensor]) -> dict[Name, mx.array]:
    """The tensors as evaluated arrays. Empties `tensors`, so that each is freed once copied."""
    arrays = {name: _array(tensors.pop(name)) for name in list(tensors)}
    mx.eval(list(arrays.values()))
    return arrays


def write(
    path: Path, tensors: Mapping[str, Tensor], facts: dict[str, Any], *, full_sync: bool = True
) -> int:
    """Write a file atomically and force it to the disk; return its size in bytes.

    `facts` are JSON. Without `full_sync`, this is faster on macOS, and safe enough for data that
    can be recomputed: the checksum detects what a power cut destroyed. Raises OSError, leaving the
    old file unchanged.
    """
    entries: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.bits.nbytes
        entries[name] = {
            "dtype": tensor.type,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = _canonical(facts)
    buffers = [_bytes(tensor.bits) for tensor in tensors.values()]
    metadata = {"facts": text, "checksum": _checksum(entries, text, buffers)}
    header = _canonical({"__metadata__": metadata, **entries}).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_HEADER_BYTES:
        raise OSError("the facts are too large for a file")

    def pieces() -> Iterator[bytes | memoryview]:
        yield struct.pack("<Q", len(header)) + header
        yield from buffers

    write_atomically(path, pieces(), full_sync=full_sync)
    return 8 + len(header) + end


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, mapped from the file and so not in memory yet, and the facts.

    Raises SnapshotBroken if the file is truncated, changed, or of another kind; OSError if it
    cannot be read.
    """
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        entries, metadata = _read_header(path, file, size)
        # Mapped, not read, which saves a copy: the checksum reads it and MLX copies it. Mapping is
        # safe because such files are never truncated, only replaced or deleted.
        data = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))[file.tell() :]
    text = metadata.get("facts")
    if not isinstance(text, str) or metadata.get("checksum") != _checksum(entries, text, [data]):
        _refuse(path, "wrong checksum")
    try:
        tensors = {name: _tensor(entry, data) for name, entry in entries.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotBroken(f"cannot use {path}: invalid header: {error}") from error
    return tensors, _parse(path, text)


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts alone, without comparing the checksum. Raises SnapshotBroken, OSError."""
    with open_to_read(path) as file:
        _, metadata = _read_header(path, file, os.fstat(file.fileno()).st_size)
    return _parse(path, metadata.get("facts", ""))


def _read_header(path: Path, file: BinaryIO, size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    length = file.read(8)
    if len(length) < 8:
        _refuse(path, "truncated")
    (header_bytes,) = struct.unpack("<Q", length)
    if header_bytes > min(MAX_HEADER_BYTES, size - 8):
        _refuse(path, "truncated, or another kind of file")
    header = _parse(path, file.read(header_bytes))
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict):
        _refuse(path, "no metadata")
    return header, metadata


def _parse(path: Path, text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        _refuse(path, "the header is not JSON")
    if not isinstance(value, dict):
        _refuse(path, "the header is not a JSON object")
    return value


def _refuse(path: Path, reason: str) -> NoReturn:
    raise SnapshotBroken(f"cannot use {path}: {reason}")


def _tensor(entry: dict[str, Any], data: memoryview) -> Tensor:
    start, end = entry["data_offsets"]
    _, carrier = TYPES[entry["dtype"]]
    bits = np.frombuffer(data[start:end], carrier).reshape(entry["shape"])
    return Tensor(entry["dtype"], bits.shape, bits)


def _array(tensor: Tensor) -> mx.array:
    dtype, _ = TYPES[tensor.type]
    array = mx.array(tensor.bits)
    return array.view(dtype) if dtype == mx.bfloat16 else array


def _canonical(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _bytes(bits: np.ndarray) -> memoryview:
    # An empty view cannot be cast to bytes.
    flat: Any = bits.reshape(-1)
    return memoryview(flat).cast("B") if bits.size else memoryview(b"")


def _checksum(entries: dict[str, Any], facts: str, buffers: list[memoryview]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for text in (_canonical(entries), facts):
        digest.update(struct.pack("<Q", len(text)) + text.encode())
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()
