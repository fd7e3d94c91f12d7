"""Named tensors and facts in one file, in an open format that detects any damage.

The format is safetensors. Its metadata contains the facts, and its last tensor is a checksum of all
bytes before it, which is compared before any of them is believed. The callers know what the tensors
mean.

Source: https://github.com/huggingface/safetensors for the format.
"""

import hashlib
import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from mlxchat.errors import SnapshotBroken
from mlxchat.files import open_to_read, write_atomically

CHECKSUM = "checksum"
CHECKSUM_BYTES = 32

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
    header: dict[str, Any] = {"__metadata__": {"facts": json.dumps(facts)}}
    end = 0
    checksum = Tensor("U8", (CHECKSUM_BYTES,), np.zeros(CHECKSUM_BYTES, np.uint8))
    for name, tensor in [*tensors.items(), (CHECKSUM, checksum)]:
        start, end = end, end + tensor.bits.nbytes
        header[name] = {
            "dtype": tensor.type,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def pieces() -> Iterator[bytes | memoryview]:
        digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
        beginning = struct.pack("<Q", len(text)) + text
        for piece in [beginning, *(_bytes(tensor.bits) for tensor in tensors.values())]:
            digest.update(piece)
            yield piece
        yield digest.digest()

    write_atomically(path, pieces(), full_sync=full_sync)
    return 8 + len(text) + end


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, mapped from the file and so not in memory yet, and the facts.

    Raises SnapshotBroken if the file is truncated, changed, or of another kind; OSError if it
    cannot be read.
    """
    # Mapped, not read, which saves a copy: the checksum reads it and MLX copies it. Mapping is safe
    # because such files are never truncated, only replaced or deleted.
    whole = _mapped(path)
    digest = hashlib.blake2b(whole[:-CHECKSUM_BYTES], digest_size=CHECKSUM_BYTES)
    if whole[-CHECKSUM_BYTES:] != digest.digest():
        raise SnapshotBroken(f"cannot use {path}: wrong checksum")
    header, data = _parsed(whole)
    del header[CHECKSUM]
    facts = json.loads(header.pop("__metadata__")["facts"])
    return {name: _tensor(entry, data) for name, entry in header.items()}, facts


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts alone, without comparing the checksum. Raises SnapshotBroken, OSError."""
    try:
        header, _ = _parsed(_mapped(path))
        return dict(json.loads(header["__metadata__"]["facts"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotBroken(f"cannot use {path}: no facts in its header") from error


def _mapped(path: Path) -> memoryview:
    with open_to_read(path) as file:
        # An empty file cannot be mapped.
        if not file.read(1):
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _parsed(whole: memoryview) -> tuple[dict[str, Any], memoryview]:
    """The header, and the data after it."""
    end = 8 + int.from_bytes(whole[:8], "little")
    return json.loads(bytes(whole[8:end])), whole[end:]


def _tensor(entry: dict[str, Any], data: memoryview) -> Tensor:
    start, end = entry["data_offsets"]
    _, carrier = TYPES[entry["dtype"]]
    bits = np.frombuffer(data[start:end], carrier).reshape(entry["shape"])
    return Tensor(entry["dtype"], bits.shape, bits)


def _array(tensor: Tensor) -> mx.array:
    dtype, _ = TYPES[tensor.type]
    array = mx.array(tensor.bits)
    return array.view(dtype) if dtype == mx.bfloat16 else array


def _bytes(bits: np.ndarray) -> memoryview:
    # An empty view cannot be cast to bytes.
    flat: Any = bits.reshape(-1)
    return memoryview(flat).cast("B") if bits.size else memoryview(b"")
