"""Replace a whole file: a crash, a full disk or a power cut leaves either the old or the new.
Delete files of a cache."""

import os
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from mlxchat.files.disk import force_to_disk, sync_directory, write_all

# Younger temporary files may be in the process of being written.
STRAY_AFTER_S = 86_400.0


def write_atomically(
    path: Path,
    data: bytes | Iterable[bytes | memoryview],
    mode: int = 0o600,
    *,
    full_sync: bool = True,
) -> None:
    """Create or replace `path` with `data`, in one piece or several, and permission bits `mode`.

    The data is written to a temporary file in the same directory, synced with `force_to_disk`, and
    renamed. A symbolic link is kept and its target replaced. The directory must exist.

    Raises OSError (disk full, no permission), leaving `path` unchanged and no temporary file.
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


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Yield the path of a new file, private to its owner, for the body to write; it replaces `path`
    if the body ends without an error, and else is removed. The directory must exist.

    It is not synced: a power cut may leave it damaged. Raises OSError.
    """
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=_aside(path))
    os.close(descriptor)
    try:
        yield Path(aside)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def remove_unfinished(path: Path) -> None:
    """Remove temporary files left by killed writes of `path`. No process may be writing it."""
    with suppress(OSError):
        for left in path.parent.iterdir():
            if left.name.startswith(_aside(path)):
                left.unlink()


def by_use(directory: Path) -> list[tuple[Path, os.stat_result]]:
    """The files of a cache, most recently used first, by their modification times. Raises
    OSError."""
    found: list[tuple[Path, os.stat_result]] = []
    if directory.exists():
        for path in directory.iterdir():
            # Another process may have deleted it meanwhile.
            with suppress(FileNotFoundError):
                found.append((path, path.stat()))
    return sorted(found, key=lambda each: -each[1].st_mtime_ns)


def prune(directory: Path, limit_bytes: int) -> int:
    """Delete the least recently used files, until the rest is within the limit, and what killed
    processes left. Return the bytes of the rest. Raises OSError."""
    kept = 0
    stray_before = time.time() - STRAY_AFTER_S
    for path, status in by_use(directory):
        if path.name.startswith("."):
            if status.st_mtime < stray_before:
                path.unlink(missing_ok=True)
            continue
        kept += status.st_size
        if kept > limit_bytes:
            # All that are older go too: they may be later pages of the same text.
            limit_bytes = -1
            kept -= status.st_size
            path.unlink(missing_ok=True)
    return kept


def _aside(path: Path) -> str:
    """Prefix of the temporary file's name."""
    return f".{path.name}."
