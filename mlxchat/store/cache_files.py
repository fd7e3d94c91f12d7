"""Tensors that can be computed again, in files of one folder: pages of prompt prefixes, and blocks.

A file is named by a hash of all that its tensors depend on. Its modification time is when it was
last used. Losing a file costs a computation and nothing else, so several processes may read, write
and delete them at the same time.

Source: blocks named by a hash of their tokens and of the block before them, from vLLM's automatic
prefix caching (Kwon et al., 2023).
"""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from mlxchat.errors import SnapshotBroken
from mlxchat.files import by_use, make_private_directory, prune
from mlxchat.store import tensor_file
from mlxchat.store.tensor_file import Tensor

SUFFIX = ".safetensors"

# A page seems a little older than the one before it, so that it is deleted first.
OLDER_S = 1e-5


class CacheFiles:
    """The files in `directory`, which is created when the first one is written. Those written here
    and all others together stay within `limit_bytes`."""

    def __init__(self, directory: Path, limit_bytes: int = sys.maxsize) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        # Their size when last counted, and what was written here since.
        self._bytes: int | None = None

    def path_of(self, key: str) -> Path:
        return self.directory / f"{key}{SUFFIX}"

    def present(self, keys: Iterable[str]) -> int:
        """How many of the first keys have files, up to the first that has none."""
        return sum(1 for _ in takewhile(lambda key: self.path_of(key).exists(), keys))

    def facts(self, key: str) -> dict[str, Any]:
        """What the file says of itself; nothing if there is none, or no readable one."""
        try:
            return tensor_file.read_facts(self.path_of(key))
        except (OSError, SnapshotBroken):
            return {}

    def read(self, key: str) -> dict[str, Tensor] | None:
        """The tensors; None if there is no file. A file that cannot be trusted is deleted."""
        try:
            tensors, facts = tensor_file.read(self.path_of(key))
            if facts.get("key") == key:
                return tensors
        except OSError:
            return None
        except SnapshotBroken:
            pass
        # Another process may have deleted it, or be unable to.
        with suppress(OSError):
            self.path_of(key).unlink()
        return None

    def write(
        self, key: str, tensors: Mapping[str, Tensor], facts: dict[str, Any], used: float
    ) -> int:
        """Write a file, and enforce the limit; return its size in bytes. Raises OSError."""
        make_private_directory(self.directory)
        facts = facts | {"key": key}
        size_bytes = tensor_file.write(self.path_of(key), tensors, facts, full_sync=False)
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
        """Whether the disk has room for as much as may be written."""
        above = (self.directory, *self.directory.parents)
        nearest = next(each for each in above if each.exists())
        return shutil.disk_usage(nearest).free > self.limit_bytes

    def size_bytes(self) -> int:
        """The size of all files. Raises OSError."""
        return sum(status.st_size for _, status in by_use(self.directory))
