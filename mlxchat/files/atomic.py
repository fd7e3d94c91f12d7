"""Replacing a whole file: a crash, a full disk or a power cut leaves the old one or the new one."""

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mlxchat.files.disk import force_to_disk, sync_directory, write_all


def write_atomically(
    path: Path,
    data: bytes | Iterable[bytes | memoryview],
    mode: int = 0o600,
    *,
    full_sync: bool = True,
) -> None:
    """Replace `path`, or make it, with `data`, whole or in pieces, and the permission bits `mode`.

    The data is written to a file beside it, forced to the disk as `force_to_disk` does, and
    renamed. A symbolic link stays one: what it points to is replaced. The directory must exist.

    Raises OSError (a full disk, no permission); then `path` is as it was and nothing is left over.
    """
    target = path.resolve()
    descriptor, aside = tempfile.mkstemp(dir=target.parent, prefix=_aside(target))
    try:
        try:
            offset = 0
            for piece in [data] if isinstance(data, bytes) else data:
                write_all(descriptor, piece, offset)
                offset += len(piece)
            os.fchmod(descriptor, mode)
            force_to_disk(descriptor, full=full_sync)
        finally:
            os.close(descriptor)
        Path(aside).replace(target)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def remove_unfinished(path: Path) -> None:
    """Remove what a kill has left of writing `path`, which no process may be doing now."""
    with suppress(OSError):
        for left in path.parent.iterdir():
            if left.name.startswith(_aside(path)):
                left.unlink()


def _aside(path: Path) -> str:
    """How the name of the file beside `path` begins."""
    return f".{path.name}."
