"""Writing files so that a crash, a full disk or a power cut leaves the old one or the new one."""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What says that bytes are lost, however the file is forced to the disk next.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def force_to_disk(descriptor: int) -> None:
    """Return once the file's bytes would survive a power cut. Raises OSError.

    On macOS `fsync` only hands them to the drive, which may keep them in its own memory;
    F_FULLFSYNC empties that too. File systems that cannot do it (network shares) get `fsync`.
    Source: fsync(2) of macOS; https://bugs.python.org/issue11877.
    """
    full_sync: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        try:
            fcntl.fcntl(descriptor, full_sync)
            return
        except OSError as error:
            if error.errno in _LOST:
                # A second call might succeed: the system reports a lost write only once.
                raise
    os.fsync(descriptor)


def write_atomically(
    path: Path,
    data: bytes | Iterable[bytes],
    mode: int = 0o600,
    *,
    force: Callable[[int], None] = force_to_disk,
) -> None:
    """Replace `path`, or make it, with `data`, whole or in pieces, and the permission bits `mode`.

    The data is written beside the target, forced to the disk and renamed over it. A symbolic link
    stays one: what it points to is replaced. The directory must exist.

    Raises OSError (a full disk, no permission); then `path` is as it was and nothing is left over.
    """
    target = path.resolve()
    descriptor, aside = tempfile.mkstemp(dir=target.parent, prefix=_aside(target))
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fchmod(descriptor, mode)
            force(descriptor)
        Path(aside).replace(target)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """While the body runs, other processes that want to be alone here wait. Leaves no lock file."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        # A network's file system may be unable to lock a directory: then nobody waits.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def append_line(path: Path, line: str) -> None:
    """Put `line` and a line end behind what is in `path`, which is made if it is not there; on a
    line of its own, also where the last one was cut short. Raises OSError."""
    descriptor = open_to_append(path)
    try:
        data = f"{line}\n".encode()
        if _ends_within_a_line(descriptor):
            data = b"\n" + data
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def open_to_append(path: Path) -> int:
    """The descriptor of a file that may be made now. Raises OSError."""
    # Without O_NONBLOCK a pipe that nobody reads would stop the program here.
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)


def _ends_within_a_line(descriptor: int) -> bool:
    """Whether an earlier line was cut short, by a full disk or a kill."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return False
    return os.pread(descriptor, 1, status.st_size - 1) != b"\n"


def remove_unfinished(path: Path) -> None:
    """Remove what a kill has left of writing `path` atomically, which nobody may be doing now."""
    with suppress(OSError):
        for left in path.parent.iterdir():
            if left.name.startswith(_aside(path)):
                left.unlink()


def _aside(path: Path) -> str:
    """How the name of what is written beside `path` begins."""
    return f".{path.name}."


def sync_directory(directory: Path) -> None:
    """Force to the disk which files are in it, where the file system can do that."""
    # The rename itself is only safe from a power cut once the directory is on the disk. Some file
    # systems cannot do it: then the rename stands, and only that guarantee is lost.
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
