"""The system calls under every durable write: opening, writing to the end, forcing to the disk."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mlxchat.errors import MlxchatError

# The data is lost, however the file is forced to the disk next.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

# The file system cannot force anything to the disk.
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


@contextmanager
def reported_as(error_type: type[MlxchatError], action: str) -> Iterator[None]:
    """Raise an OSError of the body as one line: cannot `action`, and the reason."""
    try:
        yield
    except OSError as error:
        raise error_type(f"cannot {action}: {error.strerror or error}") from error


def open_file(path: Path, flags: int) -> int:
    """Open a file without following a link or waiting for the other end of a pipe; a new one is for
    its owner only. Raises OSError."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def open_to_read(path: Path) -> BinaryIO:
    """Open a file, and nothing that could block or never end. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file")
    return os.fdopen(descriptor, "rb")


def make_private_directory(directory: Path) -> None:
    """Make it and what is missing above it, for the owner only. Raises OSError."""
    for each in (*reversed(directory.parents), directory):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def write_all(descriptor: int, data: bytes | memoryview, offset: int | None = None) -> None:
    """Write all of it, at `offset` or where the file stands, in as many pieces as the system takes.
    Raises OSError."""
    rest = memoryview(data)
    while rest:
        written = (
            os.write(descriptor, rest)
            if offset is None
            else os.pwrite(descriptor, rest, offset + len(data) - len(rest))
        )
        if written <= 0:
            raise OSError(errno.EIO, "nothing more can be written to it")
        rest = rest[written:]


def force_to_disk(descriptor: int, *, full: bool = True) -> None:
    """Return once the file's bytes would survive a power cut, as far as the file system can promise
    that. Raises OSError.

    On macOS `fsync` only hands them to the drive, which may keep them in its own memory;
    F_FULLFSYNC, called if `full`, empties that too. Network shares refuse it and get `fsync`.
    Source: fsync(2) of macOS; https://bugs.python.org/issue11877.
    """
    full_sync: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full and full_sync is not None:
        try:
            fcntl.fcntl(descriptor, full_sync)
            return
        except OSError as error:
            if error.errno in _LOST:
                # A second call might succeed: the system reports a lost write only once.
                raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def sync_directory(directory: Path) -> None:
    """Force to the disk which files are in it, if the file system can do that.

    If not, only the safety from a power cut is lost: what was renamed or made stands.
    """
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
