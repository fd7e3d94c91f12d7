"""Write a model's weights into one safetensors file, a few rows at a time.

Only a piece of one tensor is in memory at a time. Norms, biases and unquantized matrices keep their
type; `pack` converts the others.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
from gguf.constants import GGMLQuantizationType as Kind

from mlxchat.files import force_to_disk
from mlxchat.models.gguf.pack import GROUP_SIZE, is_packed, pack, packed_bits
from mlxchat.models.gguf.read import GgufFile, Tensor
from mlxchat.models.gguf.tensors import Parameter

CHUNK_VALUES = 4 * 1024 * 1024

ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}

BF16 = np.dtype("<u2")  # numpy has no bfloat16; these are its bits
STORED_AS = {Kind.F32: np.dtype("<f4"), Kind.F16: np.dtype("<f2"), Kind.BF16: BF16}

# Name → type and shape of each array in a safetensors file.
Layout = dict[str, tuple[str, tuple[int, ...]]]


def layout_of(matched: list[tuple[Tensor, Parameter]]) -> Layout:
    """The arrays that the tensors are converted to."""
    layout: Layout = {}
    for tensor, parameter in matched:
        if is_packed(tensor.kind):
            rows, columns = tensor.shape
            words = columns * packed_bits(tensor.kind) // 32
            layout[f"{parameter.module}.weight"] = ("U32", (rows, words))
            layout[f"{parameter.module}.scales"] = ("F16", (rows, columns // GROUP_SIZE))
            layout[f"{parameter.module}.biases"] = ("F16", (rows, columns // GROUP_SIZE))
        else:
            kind = "F32" if parameter.plus_one else tensor.kind.name
            layout[parameter.name] = (kind, tensor.shape)
    return layout


def layout_bytes(layout: Layout) -> int:
    return sum(ELEMENT_BYTES[kind] * math.prod(shape) for kind, shape in layout.values())


def write_weights(file: GgufFile, matched: list[tuple[Tensor, Parameter]], path: Path) -> None:
    """Convert all tensors into the safetensors file `path`.

    Raises ModelBroken for values that are not finite.
    """
    with SafetensorsWriter(path, layout_of(matched)) as writer:
        for tensor, parameter in matched:
            for rows in _row_chunks(file, tensor, parameter):
                pieces = _packed(rows, tensor, parameter) or _plain(rows, tensor, parameter)
                if not all(_is_finite(piece) for piece in pieces.values()):
                    raise file.broken(f"tensor {tensor.name!r} contains infinite or NaN values")
                for name, piece in pieces.items():
                    writer.append(name, piece)


def _row_chunks(file: GgufFile, tensor: Tensor, parameter: Parameter) -> Iterator[np.ndarray]:
    """Read a tensor's raw rows in the model's order; interleaved ones in whole heads."""
    unit = parameter.interleaved_rows
    columns = math.prod(tensor.shape[1:])
    step = max(CHUNK_VALUES // (columns * unit), 1) * unit
    for start in range(0, tensor.shape[0], step):
        rows = file.read_rows(tensor, start, min(start + step, tensor.shape[0]))
        yield _undo_interleaving(rows, unit)


def _undo_interleaving(rows: np.ndarray, head_rows: int) -> np.ndarray:
    """Put each head's even rows before its odd ones, as Hugging Face does.

    llama.cpp rotates adjacent pairs, mlx-lm's llama the two halves. rows: (n * head_rows, …).
    """
    if head_rows == 1:
        return rows
    pairs = rows.reshape(-1, head_rows // 2, 2, rows.shape[-1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _packed(rows: np.ndarray, tensor: Tensor, parameter: Parameter) -> dict[str, np.ndarray]:
    """Codes, scales and biases of a quantized tensor's rows; empty for other tensors."""
    if not is_packed(tensor.kind):
        return {}
    leaves = zip(("weight", "scales", "biases"), pack(rows, tensor.kind), strict=True)
    return {f"{parameter.module}.{leaf}": piece for leaf, piece in leaves}


def _plain(rows: np.ndarray, tensor: Tensor, parameter: Parameter) -> dict[str, np.ndarray]:
    """Unquantized values as stored, minus the one that llama.cpp adds to some norms."""
    values = rows.view(STORED_AS[tensor.kind])
    if parameter.plus_one:
        with np.errstate(invalid="ignore"):
            values = _float32(values) - np.float32(1)
    return {parameter.name: values}


def _is_finite(piece: np.ndarray) -> bool:
    """Whether a piece of values, scales or codes has only finite values."""
    if piece.dtype == BF16:
        return not ((piece & 0x7F80) == 0x7F80).any()
    return bool(np.isfinite(piece).all())


def _float32(values: np.ndarray) -> np.ndarray:
    if values.dtype == BF16:
        return (values.astype("<u4") << 16).view("<f4")
    return values.astype(np.float32)


class SafetensorsWriter:
    """A safetensors file whose arrays are written in pieces, in any order.

    Source of the layout: https://github.com/huggingface/safetensors#format
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self._stream = path.open("wb")
        header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
        self._next: dict[str, int] = {}  # byte offset of each array's next piece
        self._end: dict[str, int] = {}
        end = 0
        for name, (kind, shape) in layout.items():
            start, end = end, end + ELEMENT_BYTES[kind] * math.prod(shape)
            header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
            self._next[name], self._end[name] = start, end
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)
        self._data_offset = 8 + len(encoded)
        self._stream.write(len(encoded).to_bytes(8, "little") + encoded)

    def append(self, name: str, piece: np.ndarray) -> None:
        """Write the next elements of array `name`."""
        assert self._next[name] + piece.nbytes <= self._end[name], name
        self._stream.seek(self._data_offset + self._next[name])
        self._stream.write(np.ascontiguousarray(piece).data)
        self._next[name] += piece.nbytes

    def __enter__(self) -> "SafetensorsWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._stream:
            if error is None:
                assert self._next == self._end
                self._stream.flush()
                force_to_disk(self._stream.fileno())
