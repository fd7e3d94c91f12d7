"""Read a GGUF file: its metadata, the position of each tensor, and tensor bytes row by row.

The file is untrusted: every count and length is checked against the remaining bytes before anything
is allocated. Whatever does not fit raises ModelBroken naming the file. Callers interpret the
metadata.
Source of the layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from mlxchat.errors import ModelBroken, ModelUnsupported
from mlxchat.files import reported_as

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT_BYTES = 32
MAX_DIMENSIONS = 4
LENGTH_BYTES = 8  # of a string or an array
MIN_ENTRY_BYTES = 12  # minimum size of a key with its value, or of a tensor's description

Value = bool | int | float | str | list[str] | np.ndarray

_NUMPY_TYPES = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "|b1",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}


def _broken(path: Path, what: str) -> ModelBroken:
    return ModelBroken(f"{path} is damaged or incomplete: {what}")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in the file. `shape` is (rows, columns) or (length,), slowest axis first."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset_bytes: int  # from the start of the file
    size_bytes: int

    @property
    def row_bytes(self) -> int:
        return self.size_bytes // self.shape[0]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open GGUF file. The getters raise ModelBroken if a key is missing or has another type."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, Tensor]
    stream: BinaryIO

    def broken(self, what: str) -> ModelBroken:
        return _broken(self.path, what)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.broken(f"{key} is not an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.broken(f"{key} is not a number")
        if not math.isfinite(value):
            raise self.broken(f"{key} is {value}")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.broken(f"{key} is neither true nor false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.broken(f"{key} is not a string")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._get(key, None)
        if not isinstance(value, list):
            raise self.broken(f"{key} is not a list of strings")
        return value

    def numbers(self, key: str) -> np.ndarray:
        value = self._get(key, None)
        if not isinstance(value, np.ndarray):
            raise self.broken(f"{key} is not a list of numbers")
        return value

    def _get(self, key: str, default: Value | None) -> Value:
        value = self.metadata.get(key, default)
        if value is None:
            raise self.broken(f"the metadata has no {key}")
        return value

    def read_rows(self, tensor: Tensor, start: int, stop: int) -> np.ndarray:
        """Read rows as stored. Returns uint8 of shape (stop - start, row_bytes)."""
        with reported_as(ModelBroken, f"read {self.path}"):
            self.stream.seek(tensor.offset_bytes + start * tensor.row_bytes)
            raw = self.stream.read((stop - start) * tensor.row_bytes)
        if len(raw) != (stop - start) * tensor.row_bytes:
            raise self.broken(f"the file ends within tensor {tensor.name!r}")
        return np.frombuffer(raw, np.uint8).reshape(stop - start, tensor.row_bytes)


@contextmanager
def open_gguf(path: Path) -> Iterator[GgufFile]:
    """Open a GGUF file and read its header. Raises ModelBroken if it is not a valid one."""
    with reported_as(ModelBroken, f"read {path}"):
        stream = path.open("rb")
    with stream:
        yield _Header(path, stream).read()


class _Header:
    """A cursor over the header that never reads past the end of the file."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self.stream = stream
        self.position = 0
        self.size_bytes = stream.seek(0, 2)
        stream.seek(0)

    def read(self) -> GgufFile:
        if self.size_bytes < len(MAGIC) or self.take(len(MAGIC)) != MAGIC:
            raise ModelBroken(f"{self.path} is not a GGUF file: it does not start with 'GGUF'")
        self.check_version(self.unsigned(4))
        tensor_count, key_count = self.count(), self.count()
        metadata: dict[str, Value] = {}
        for _ in range(key_count):
            key = self.text()
            if key in metadata:
                raise self.broken(f"the metadata has {key!r} twice")
            metadata[key] = self.value(self.value_type())
        tensors = self.tensors(tensor_count, self.alignment_bytes(metadata))
        return GgufFile(self.path, metadata, tensors, self.stream)

    def broken(self, what: str) -> ModelBroken:
        return _broken(self.path, what)

    def check_version(self, version: int) -> None:
        if version & 0xFFFF == 0:
            raise ModelBroken(f"{self.path}: big-endian GGUF files are not supported")
        if version not in VERSIONS:
            raise ModelBroken(f"{self.path}: unsupported GGUF version {version}; supported: 2, 3")

    def take(self, count: int) -> bytes:
        if count > self.size_bytes - self.position:
            raise self.broken(f"the file ends within its header, at {self.size_bytes} bytes")
        try:
            data = self.stream.read(count)
        except OSError as error:
            raise ModelBroken(f"cannot read {self.path}: {error.strerror}") from error
        if len(data) != count:
            raise self.broken("the file shrank while it was read")
        self.position += count
        return data

    def unsigned(self, size_bytes: int) -> int:
        return int.from_bytes(self.take(size_bytes), "little")

    def count(self) -> int:
        """Read a number of entries, and check that the rest of the file has room for them."""
        count = self.unsigned(8)
        if count > (self.size_bytes - self.position) // MIN_ENTRY_BYTES:
            raise self.broken(f"the header announces {count} entries, but the file is too short")
        return count

    def text(self) -> str:
        try:
            return str(self.take(self.unsigned(LENGTH_BYTES)), "utf-8")
        except UnicodeDecodeError as error:
            raise self.broken(f"a string in the header is not UTF-8 ({error.reason})") from error

    def value_type(self) -> GGUFValueType:
        number = self.unsigned(4)
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self.broken(f"the metadata has a value of unknown type {number}") from None

    def value(self, kind: GGUFValueType) -> Value:
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind == GGUFValueType.ARRAY:
            return self.array(self.value_type(), self.unsigned(LENGTH_BYTES))
        value = self.numbers(kind, 1)[0]
        if kind == GGUFValueType.FLOAT32:
            return float(str(value))  # 1e-05 rather than 9.999999747378752e-06
        return value.item()

    def array(self, kind: GGUFValueType, count: int) -> list[str] | np.ndarray:
        if kind == GGUFValueType.STRING:
            if count > (self.size_bytes - self.position) // LENGTH_BYTES:
                raise self.broken(
                    f"the header announces {count} strings, but the file is too short"
                )
            return [self.text() for _ in range(count)]
        if kind == GGUFValueType.ARRAY:
            raise self.broken("the metadata has an array of arrays")
        return self.numbers(kind, count)

    def numbers(self, kind: GGUFValueType, count: int) -> np.ndarray:
        dtype = np.dtype(_NUMPY_TYPES[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def alignment_bytes(self, metadata: dict[str, Value]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT_BYTES)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.broken(f"general.alignment is {alignment!r}, not a power of two")
        return alignment

    def tensors(self, count: int, alignment_bytes: int) -> dict[str, Tensor]:
        described = [self.tensor() for _ in range(count)]
        data_offset = -(-self.position // alignment_bytes) * alignment_bytes
        tensors: dict[str, Tensor] = {}
        for name, kind, shape, offset in described:
            if name in tensors:
                raise self.broken(f"tensor {name!r} occurs twice")
            size_bytes = self.tensor_bytes(name, kind, shape)
            if data_offset + offset + size_bytes > self.size_bytes:
                raise self.broken(f"the file ends before tensor {name!r} does: copy it again")
            tensors[name] = Tensor(name, kind, shape, data_offset + offset, size_bytes)
        return tensors

    def tensor(self) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
        name = self.text()
        dimension_count = self.unsigned(4)
        if not 1 <= dimension_count <= MAX_DIMENSIONS:
            raise self.broken(f"tensor {name!r} has {dimension_count} dimensions")
        # GGUF stores the fastest axis first.
        shape = struct.unpack(f"<{dimension_count}Q", self.take(8 * dimension_count))[::-1]
        number = self.unsigned(4)
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise ModelUnsupported(
                f"{self.path} is damaged or too new: tensor {name!r} is of unknown type {number}"
            ) from None
        return name, kind, shape, self.unsigned(8)

    def tensor_bytes(self, name: str, kind: GGMLQuantizationType, shape: tuple[int, ...]) -> int:
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
        if 0 in shape or shape[-1] % block_elements:
            raise self.broken(f"tensor {name!r} of type {kind.name} has shape {shape}")
        return math.prod(shape) // block_elements * block_bytes
