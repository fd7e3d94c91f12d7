"""Named tensors and facts in one file, in an open format that detects any damage; and a folder of
such files, which may be lost.

The format is safetensors. Its metadata contains the facts, and its last tensor is a checksum of all
bytes before it, compared before any of them is believed. Callers know what the tensors mean.

Source: https://github.com/huggingface/safetensors for the format; blocks named by a hash of their
tokens and of the block before them, from vLLM's automatic prefix caching (Kwon et al., 2023).
"""

import hashlib
import json
import mmap
import os
import shutil
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from mlxchat.errors import SnapshotBroken
from mlxchat.files import by_use, make_private_directory, open_to_read, prune, write_atomically

CHECKSUM = "checksum"
CHECKSUM_BYTES = 32

# Safetensors' names of numpy's types. Numpy has no bfloat16: only its bits are uint16 here.
TYPES: dict[str, Any] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I32": np.int32,
    "U32": np.uint32,
    "I64": np.int64,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
NAMES = {np.dtype(type_): name for name, type_ in TYPES.items()}

SUFFIX = ".safetensors"
# Free space on the disk that is left to others.
SPARE_BYTES = 1_000_000_000
# A page seems a little older than the one before it, so that it is deleted first.
OLDER_S = 1e-5

Name = TypeVar("Name")
# Bits that any thread can read; an MLX array belongs to one thread.
Tensors = dict[str, np.ndarray]


def hold(arrays: Mapping[Name, mx.array]) -> dict[Name, np.ndarray]:
    """Evaluate the arrays, all together because each evaluation waits for the device, and return
    their bits. Copies only arrays that are not contiguous."""
    in_order = {name: mx.contiguous(array) for name, array in arrays.items()}
    bits = {n: a.view(mx.uint16) if a.dtype == mx.bfloat16 else a for n, a in in_order.items()}
    mx.eval(list(bits.values()))
    return {name: np.array(array, copy=False) for name, array in bits.items()}


def loaded(tensors: Tensors) -> dict[str, mx.array]:
    """The tensors as evaluated arrays. Empties `tensors`, so that each is freed once copied."""
    arrays: dict[str, mx.array] = {}
    for name in list(tensors):
        bits = tensors.pop(name)
        array = mx.array(bits)
        arrays[name] = array.view(mx.bfloat16) if bits.dtype == np.uint16 else array
    mx.eval(list(arrays.values()))
    return arrays


def write(
    path: Path, tensors: Mapping[str, np.ndarray], facts: dict[str, Any], *, full_sync: bool = True
) -> int:
    """Write a file atomically and force it to the disk; return its size in bytes.

    `facts` are JSON. Without `full_sync`, this is faster on macOS, and safe enough for data that
    can be recomputed: the checksum detects what a power cut destroyed. Raises OSError.
    """
    header: dict[str, Any] = {"__metadata__": {"facts": json.dumps(facts)}}
    end = 0
    for name, bits in [*tensors.items(), (CHECKSUM, np.zeros(CHECKSUM_BYTES, np.uint8))]:
        offsets = [end, end := end + bits.nbytes]
        header[name] = {"dtype": NAMES[bits.dtype], "shape": bits.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def pieces() -> Iterator[bytes | memoryview]:
        digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
        for piece in [struct.pack("<Q", len(text)) + text, *map(_bytes, tensors.values())]:
            digest.update(piece)
            yield piece
        yield digest.digest()

    write_atomically(path, pieces(), full_sync=full_sync)
    return 8 + len(text) + end


def read(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Return the tensors, mapped from the file and so not in memory yet, and the facts.

    Raises SnapshotBroken if it is truncated, changed, or of another kind; OSError if unreadable.
    """
    # Mapped, not read, which saves a copy: the checksum reads it and MLX copies it. Mapping is safe
    # because such files are never truncated, only replaced or deleted.
    with open_to_read(path) as file:
        # An empty file cannot be mapped.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.read(1) else b""
    whole = memoryview(mapped)
    digest = hashlib.blake2b(whole[:-CHECKSUM_BYTES], digest_size=CHECKSUM_BYTES)
    if whole[-CHECKSUM_BYTES:] != digest.digest():
        raise SnapshotBroken(f"cannot use {path}: wrong checksum")
    end = 8 + int.from_bytes(whole[:8], "little")
    header, data = json.loads(bytes(whole[8:end])), whole[end:]
    del header[CHECKSUM]
    facts = json.loads(header.pop("__metadata__")["facts"])
    return {name: _tensor(entry, data) for name, entry in header.items()}, facts


def _tensor(entry: dict[str, Any], data: memoryview) -> np.ndarray:
    start, end = entry["data_offsets"]
    return np.frombuffer(data[start:end], TYPES[entry["dtype"]]).reshape(entry["shape"])


def _bytes(bits: np.ndarray) -> memoryview:
    # An empty view cannot be cast to bytes.
    flat: Any = bits.reshape(-1)
    return memoryview(flat).cast("B") if bits.size else memoryview(b"")


class CacheFiles:
    """Files in `directory`, which is created when the first one is written: pages of prompt
    prefixes, and blocks. Those written here and all others together stay within `limit_bytes`.

    A file is named by a hash of all that its tensors depend on. Its modification time is when it
    was last used. Losing one costs a computation and nothing else, so several processes may read,
    write and delete them at the same time.
    """

    def __init__(self, directory: Path, limit_bytes: int = sys.maxsize) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        # Their size when last counted, and what was written here since.
        self._bytes: int | None = None

    def path_of(self, key: str) -> Path:
        return self.directory / f"{key}{SUFFIX}"

    def present(self, keys: Iterable[str]) -> int:
        """How many of the first keys have files, up to the first that has none."""
        # That of pathlib fails where this user may not look.
        return sum(1 for _ in takewhile(lambda key: os.path.exists(self.path_of(key)), keys))  # noqa: PTH110

    def read(self, key: str) -> Tensors | None:
        """The tensors; None if there is no file. A file that cannot be trusted is deleted."""
        try:
            return read(self.path_of(key))[0]
        except OSError:
            return None
        except SnapshotBroken:
            # Another process may have deleted it, or be unable to.
            with suppress(OSError):
                self.path_of(key).unlink()
            return None

    def write(self, key: str, tensors: Mapping[str, np.ndarray], used: float) -> int:
        """Write a file, and enforce the limit; return its size in bytes. Raises OSError."""
        make_private_directory(self.directory)
        size_bytes = write(self.path_of(key), tensors, {}, full_sync=False)
        self.touch([key], used)
        self._bytes = self.size_bytes() if self._bytes is None else self._bytes + size_bytes
        if self._bytes > self.limit_bytes:
            self.prune(self.limit_bytes)
        return size_bytes

    def touch(self, keys: Sequence[str], now: float | None = None) -> None:
        """Mark a page and those before it, in order, as used now."""
        now = now or time.time()
        for place, key in enumerate(keys):
            used = now - place * OLDER_S
            # If this fails, the file only seems older than it is.
            with suppress(OSError):
                os.utime(self.path_of(key), (used, used))

    def prune(self, limit_bytes: int) -> None:
        """Delete the least recently used files beyond the limit."""
        self._bytes = prune(self.directory, limit_bytes)

    def has_room(self) -> bool:
        """Whether enough of the disk stays free for others."""
        nearest = next(filter(os.path.exists, (self.directory, *self.directory.parents)))
        return shutil.disk_usage(nearest).free > SPARE_BYTES

    def size_bytes(self) -> int:
        """The size of all files. Raises OSError."""
        return sum(status.st_size for _, status in by_use(self.directory))
