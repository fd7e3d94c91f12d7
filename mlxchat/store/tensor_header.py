"""The header of a tensor file: what it says of itself, read without MLX, as completion needs it."""

import json
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from mlxchat.errors import SnapshotBroken
from mlxchat.files import open_to_read

MAX_HEADER_BYTES = 1 << 24


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts alone, without comparing the checksum. Raises SnapshotBroken, OSError."""
    with open_to_read(path) as file:
        _, metadata = read_header(path, file, os.fstat(file.fileno()).st_size)
    return parse(path, metadata.get("facts", ""))


def read_header(path: Path, file: BinaryIO, size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    length = file.read(8)
    if len(length) < 8:
        refuse(path, "truncated")
    (header_bytes,) = struct.unpack("<Q", length)
    if header_bytes > min(MAX_HEADER_BYTES, size - 8):
        refuse(path, "truncated, or another kind of file")
    header = parse(path, file.read(header_bytes))
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict):
        refuse(path, "no metadata")
    return header, metadata


def parse(path: Path, text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        refuse(path, "the header is not JSON")
    if not isinstance(value, dict):
        refuse(path, "the header is not a JSON object")
    return value


def refuse(path: Path, reason: str) -> NoReturn:
    raise SnapshotBroken(f"cannot use {path}: {reason}")
