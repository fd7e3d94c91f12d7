"""Files that survive a crash, a full disk or a power cut: atomic writes, and locks.

All durable writing, locking and syncing goes through here; callers decide what files contain.
"""

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mlxchat.errors import MlxchatError, ModelBroken, SessionError

# The data is lost: syncing again would not bring it back.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

# The file system does not support syncing.
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)

# What a clone without Git LFS holds in place of each large file.
# Source: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_LFS_POINTERS = (b"version https://git-lfs.github.com/", b"version https://hawser.github.com/")

# Younger temporary files may be in the process of being written.
STRAY_AFTER_S = 3_600.0

# Looking up a lock's holder takes the lock for a moment.
_TRIES, _PAUSE_S = 5, 0.01


@contextmanager
def reported_as(error_type: type[MlxchatError], action: str) -> Iterator[None]:
    """Turn an OSError from the body into a one-line error: cannot `action`, and the reason."""
    try:
        yield
    except OSError as error:
        raise error_type(f"cannot {action}: {error.strerror or error}") from error


def open_file(path: Path, flags: int) -> int:
    """Open a file, following no link, blocking on no pipe. A new one is private. Raises OSError."""
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
            how = f"run git lfs pull in {path.parent} to fetch the file itself"
            raise ModelBroken(f"{path} is only a Git LFS pointer: {how}")


def make_private_directory(directory: Path) -> None:
    """Create the directory and any missing parents, private to the owner. Raises OSError."""
    for each in (*reversed(directory.parents), directory):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all the data at `offset`, in as many calls as it takes. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.pwrite(descriptor, rest, offset + len(data) - len(rest)) :]


def force_to_disk(descriptor: int, *, full: bool = True) -> None:
    """Return once the file would survive a power cut, as far as can be promised. Raises OSError.

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


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Yield the path of a new file, private to its owner, for the body to write; it replaces `path`
    if the body ends without an error, and else is removed. The directory must exist.

    It is not synced: a power cut may leave it damaged. Raises OSError.
    """
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=_aside(path))
    try:
        os.close(descriptor)
        yield Path(aside)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def write_atomically(
    path: Path,
    data: bytes | Iterable[bytes | memoryview],
    mode: int = 0o600,
    *,
    full_sync: bool = True,
) -> None:
    """Create or replace `path` with `data`, in one piece or several, and permission bits `mode`.

    The data is synced with `force_to_disk` first. A symbolic link is kept and its target replaced.
    The directory must exist. Raises OSError (disk full, no permission), leaving `path` unchanged.
    """
    target = path.resolve()
    with replacing(target) as new, new.open("r+b", buffering=0) as file:
        offset = 0
        for piece in [data] if isinstance(data, bytes) else data:
            write_all(file.fileno(), piece, offset)
            offset += len(piece)
        os.fchmod(file.fileno(), mode)
        force_to_disk(file.fileno(), full=full_sync)
    sync_directory(target.parent)


def remove_unfinished(path: Path) -> None:
    """Remove temporary files left by killed writes of `path`. No process may be writing it."""
    with suppress(OSError):
        for left in path.parent.iterdir():
            if left.name.startswith(_aside(path)):
                left.unlink()


def by_use(directory: Path) -> list[tuple[Path, os.stat_result]]:
    """The files of a cache, latest used first, by their modification times. Raises OSError."""
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
    # Below 0, nothing stays.
    stray_before = time.time() - STRAY_AFTER_S * (limit_bytes >= 0)
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


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Run the body while no other process runs one with the same directory or file. Calls `on_wait`
    before waiting for another process. Leaves no lock file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Some network file systems cannot lock a directory: do not wait there.
        with suppress(OSError):
            if not _lock(descriptor, fcntl.LOCK_EX):
                on_wait()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def open_locked(path: Path, flags: int, mode: int = 0o600, *, always: bool = False) -> int | None:
    """Open a file and lock it until it is closed; None if another process has it locked. What is
    locked is at `path`, not deleted by then. A file system that cannot lock is an error only if it
    `always` has to. Raises OSError."""
    while True:
        descriptor = os.open(path, flags, mode)
        try:
            is_locked = _lock(descriptor, fcntl.LOCK_EX)
        except OSError:
            if always:
                os.close(descriptor)
                raise
            is_locked = True
        if is_locked and is_at(descriptor, path):
            return descriptor
        os.close(descriptor)
        if not is_locked:
            return None


def is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has that name: it could have been removed or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


class Lock:
    """Held until `release`, or until the process ends for any reason.

    The file at `path` is created if necessary. Raises SessionError naming the process that has
    `what` open, if it has signed, OSError if nothing can be locked.
    """

    def __init__(self, path: Path, what: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        self._path = path
        for _ in range(_TRIES):
            descriptor = open_locked(path, flags, always=True)
            if descriptor is not None:
                break
            time.sleep(_PAUSE_S)
        else:
            process = holder(path)
            where = "elsewhere" if process is None else f"in process {process}"
            raise SessionError(f"{what} is open {where}: close it there, or choose another one")
        self._descriptor = descriptor
        with suppress(OSError):
            os.ftruncate(descriptor, 0)

    def sign(self) -> None:
        """Name this process as the holder."""
        with suppress(OSError):
            # If this fails, the lock still holds.
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Also delete the file, of which there could be thousands; nothing in it is needed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                self._path.unlink()
            with suppress(OSError):
                os.close(descriptor)


def holder(path: Path) -> int | None:
    """Id of the process that holds the lock; None if it is free or the holder is unknown."""
    # A holder that has not signed leaves the file empty.
    with suppress(OSError, ValueError), os.fdopen(open_file(path, os.O_RDONLY)) as file:
        if not _lock(file.fileno(), fcntl.LOCK_SH):
            return int(file.read())
    return None


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
