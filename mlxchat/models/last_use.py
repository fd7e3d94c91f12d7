"""When each downloaded model or adapter was last used, recorded each time one is loaded.

The times of the files are not enough: many disks do not record when a file was read.
"""

import os
from contextlib import suppress
from pathlib import Path

from mlxchat import paths
from mlxchat.files import make_private_directory, open_file
from mlxchat.models.hub_cache import ADAPTER_WEIGHTS, TOKENIZER_PATTERNS, hub_cache_dir


def record_use(directory: Path) -> None:
    """Record that the model or adapter is used now, if it is from the Hub. A failure changes
    nothing."""
    if directory.parent.parent.parent != hub_cache_dir() or directory.parent.name != "snapshots":
        return
    with suppress(OSError):
        marker = _marker(directory)
        make_private_directory(marker.parent)
        descriptor = open_file(marker, os.O_WRONLY | os.O_CREAT)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)


def last_use_s(snapshot: Path) -> float:
    """The latest of the recorded use, the download, and the time at which any program read the
    tokenizer or an adapter's arrays, as far as the disk records that: lists of models read other
    files, but not those. In seconds since 1970; 0 if nothing is known."""
    times = [0.0]
    with suppress(OSError):
        times.append(_marker(snapshot).stat().st_mtime)
    for path in snapshot.rglob("*"):
        with suppress(OSError):
            times += [path.lstat().st_mtime, path.stat().st_mtime]
    read_when_used = (*TOKENIZER_PATTERNS, *ADAPTER_WEIGHTS)
    for path in (path for pattern in read_when_used for path in snapshot.glob(pattern)):
        with suppress(OSError):
            times.append(path.stat().st_atime)
    return max(times)


def forget_use(snapshot: Path) -> None:
    """Remove the record of a model that was deleted."""
    with suppress(OSError):
        _marker(snapshot).unlink()


def _marker(snapshot: Path) -> Path:
    repo = snapshot.parent.parent.name.removeprefix("models--")
    return paths.model_uses_dir() / f"{repo}@{snapshot.name}"
