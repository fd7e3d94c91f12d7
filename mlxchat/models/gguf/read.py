"""Read a GGUF file's metadata and tensors with the gguf package.

The file is untrusted, so here the package's reader never looks past its end, and whatever does not
fit raises ModelBroken naming the file. Callers interpret the metadata.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf import GGUFReader, GGUFValueType, ReaderTensor

from mlxchat.errors import ModelBroken, ModelUnsupported, first_line
from mlxchat.files import reported_as

# A list of strings takes 60 times its size in memory; the largest vocabularies have half of this.
MAX_LIST_ENTRIES = 1_000_000

# Looked up once: a vocabulary has a hundred thousand strings.
ARRAY, STRING = int(GGUFValueType.ARRAY), int(GGUFValueType.STRING)

T = TypeVar("T", bool, float, int, list, str)


class _CheckedReader(GGUFReader):
    """The package's reader, with checked bounds, and a list of numbers as one array: its own counts
    on past the file's end, and takes seconds for a vocabulary."""

    def _get(
        self, offset: int, dtype: Any, count: int = 1, override_order: object = None
    ) -> np.ndarray:
        if self.byte_order == "S":
            raise ValueError("big-endian files are not supported")
        return np.frombuffer(self.data, dtype, int(count), int(offset))

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], Any, Any]:
        if raw_type == STRING:
            parts = self._get_str(orig_offs)
            return 8 + len(parts[1]), [*parts], [1], [GGUFValueType.STRING]
        if raw_type == ARRAY:
            kind, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
            if count[0] > MAX_LIST_ENTRIES:
                raise ValueError(f"a list of {count[0]} entries")
            number = self.gguf_scalar_to_np.get(kind[0])
            if number is not None:
                values = self._get(orig_offs + 12, number, count[0])
                types = [GGUFValueType.ARRAY, GGUFValueType(kind[0])]
                return 12 + values.nbytes, [kind, count, values], [2], types
        return super()._get_field_parts(orig_offs, raw_type)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file's content, its tensors still on the disk."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, ReaderTensor]

    def broken(self, what: str) -> ModelBroken:
        return ModelBroken(f"{self.path} is damaged or incomplete: {what}")

    def unsupported(self, what: str) -> ModelUnsupported:
        return ModelUnsupported(f"{self.path}: {what}")

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of `key`, or `default`. Raises ModelBroken if missing, mistyped or infinite."""
        value: Any = self.metadata.get(key, default)
        if value is None:
            raise self.broken(f"the metadata has no {key}")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.broken(f"{key} is not of the type {kind.__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.broken(f"{key} is {value}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.get(key, int, default)
        if value < 1:
            raise self.broken(f"{key} is {value}")
        return value


def open_gguf(path: Path) -> GgufFile:
    """Read a GGUF file's header. Raises ModelBroken if it is not a valid one."""
    try:
        with reported_as(ModelBroken, f"read {path}"):
            reader = _CheckedReader(path)
        metadata = {name: _value(field) for name, field in reader.fields.items()}
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ModelBroken(
            f"{path} is damaged, incomplete or not a GGUF file: {first_line(error)}"
        ) from error
    return GgufFile(path, metadata, {each.name: each for each in reader.tensors})


def shape_of(tensor: ReaderTensor) -> tuple[int, ...]:
    """(rows, columns) or (length,)."""
    return tuple(tensor.shape.tolist()[::-1])


def _value(field: Any) -> Any:
    if field.types == [GGUFValueType.FLOAT32]:
        return float(str(field.parts[-1][0]))  # 1e-05 rather than 9.999999747378752e-06
    return field.contents()
