"""The system calls of every durable write: open, write everything, force it to the disk; and files
of lines that only grow."""

import errno
import fcntl
import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from mlxchat.errors import MlxchatError, ModelBroken

# The data is lost: syncing again would not bring it back.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

# The file system does not support syncing.
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)

# What a clone without Git LFS holds in place of each large file.
# Source: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_LFS_POINTERS = (b"version https://git-lfs.github.com/", b"version https://hawser.github.com/")


@contextmanager
def reported_as(error_type: type[MlxchatError], action: str) -> Iterator[None]:
    """Turn an OSError from the body into a one-line error: cannot `action`, and the reason."""
    try:
        yield
    except OSError as error:
        raise error_type(f"cannot {action}: {error.strerror or error}") from error


def open_file(path: Path, flags: int) -> int:
    """Open a file without following a link or blocking on a pipe. A new file is private to its
    owner. Raises OSError."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def open_to_read(path: Path) -> BinaryIO:
    """Open a regular file; anything else could block or never end. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(descriptor, "rb")


def check_not_lfs_pointer(path: Path) -> None:
    """Raise ModelBroken if the file at `path`, which may not exist, is a Git LFS pointer."""
    with suppress(OSError), open_to_read(path) as stream:
        if stream.read(64).startswith(_LFS_POINTERS):
            raise ModelBroken(
                f"{path} is only a Git LFS pointer: run git lfs pull in {path.parent} to fetch "
                "the file itself"
            )


def make_private_directory(directory: Path) -> None:
    """Create the directory and any missing parents, private to the owner. Raises OSError."""
    for each in (*reversed(directory.parents), directory):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def write_all(descriptor: int, data: bytes | memoryview, offset: int | None = None) -> None:
    """Write all the data, at `offset` or the current position, in as many calls as it takes.
    Raises OSError."""
    rest = memoryview(data)
    while rest:
        written = (
            os.write(descriptor, rest)
            if offset is None
            else os.pwrite(descriptor, rest, offset + len(data) - len(rest))
        )
        if written <= 0:
            raise OSError(errno.EIO, "no more data can be written")
        rest = rest[written:]


def force_to_disk(descriptor: int, *, full: bool = True) -> None:
    """Return once the file would survive a power cut, as far as the file system can promise that.
    Raises OSError.

    On macOS, `fsync` only hands the data to the drive, which may keep it in its own cache;
    F_FULLFSYNC, used if `full`, flushes that too. Network shares reject it and get `fsync`.
    Source: fsync(2) of macOS; https://bugs.python.org/issue11877.
    """
    full_sync: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full and full_sync is not None:
        try:
            fcntl.fcntl(descriptor, full_sync)
            return
        except OSError as error:
            if error.errno in _LOST:
                # Do not try again: the system reports a lost write only once.
                raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def sync_directory(directory: Path) -> None:
    """Force the directory's entries to the disk, if the file system can do that.

    If it cannot, a power cut may undo a rename or a new file; nothing else changes.
    """
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def append_line(path: Path, line: str) -> None:
    """Append `line` to `path`, creating the file if necessary. Starts a new line if the last one
    was cut short. Raises OSError."""
    descriptor = open_to_append(path)
    try:
        data = f"{line}\n".encode()
        write_all(descriptor, b"\n" + data if _ends_within_a_line(descriptor) else data)
    finally:
        os.close(descriptor)


def json_line(record: dict[str, Any]) -> str:
    """A JSON object without a line end. Infinity and NaN, which JSON does not have, become null."""
    return json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def open_to_append(path: Path) -> int:
    """Open a file for appending, creating it if necessary; return its descriptor. Raises
    OSError."""
    # Without O_NONBLOCK, opening a pipe that has no reader would block.
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)


def _ends_within_a_line(descriptor: int) -> bool:
    """Whether the last line was cut short, by a full disk or a kill."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return False
    return os.pread(descriptor, 1, status.st_size - 1) != b"\n"
