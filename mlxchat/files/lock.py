"""Locks between processes, released when the process that holds them ends."""

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlxchat.errors import SessionError
from mlxchat.files.disk import open_file

# Looking up a lock's holder takes the lock for a moment.
_TRIES = 5
_PAUSE_S = 0.01


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


def open_locked(path: Path, flags: int, mode: int = 0o600) -> int | None:
    """Open a file and lock it until it is closed; None if another process has it locked. What is
    locked is at `path`, not deleted by then. Raises OSError."""
    while True:
        descriptor = os.open(path, flags, mode)
        is_locked = True
        # Some network file systems cannot lock, and are not asked again.
        with suppress(OSError):
            is_locked = _lock(descriptor, fcntl.LOCK_EX)
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

    The file at `path` is created if necessary, and stays. Raises SessionError naming the process
    that has `what` open, unless it has not `signed` yet, OSError if nothing can be locked.
    """

    def __init__(self, path: Path, what: str, *, signed: bool = True) -> None:
        self._path = path
        self._descriptor = _take(path, what)
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        if signed:
            self.sign()

    def sign(self) -> None:
        """Name this process as the holder."""
        with suppress(OSError):
            # If this fails, the lock still holds.
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._descriptor < 0:
            return
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = -1

    def remove(self) -> None:
        """Release it, and delete the file, of which there could be thousands."""
        with suppress(OSError):
            self._path.unlink()
        self.release()


def holder(path: Path) -> int | None:
    """Id of the process that holds the lock; None if it is free or the holder is unknown."""
    with suppress(OSError):
        descriptor = open_file(path, os.O_RDONLY)
        try:
            # A released lock names no process. If the process was killed, the lock is free.
            process = _written_in(descriptor)
            return None if process is None or _lock(descriptor, fcntl.LOCK_SH) else process
        finally:
            os.close(descriptor)
    return None


def _take(path: Path, what: str) -> int:
    """Take the lock; return the descriptor that holds it."""
    process: int | None = None
    for _ in range(_TRIES):
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            if _lock(descriptor, fcntl.LOCK_EX) and is_at(descriptor, path):
                return descriptor
            process = _written_in(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        time.sleep(_PAUSE_S)
    who = "another process" if process is None else f"process {process}"
    raise SessionError(f"{what} is open in {who}: close it there, or choose another one")


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written_in(descriptor: int) -> int | None:
    found = re.fullmatch(rb"([1-9][0-9]{0,9})\n", os.pread(descriptor, 16, 0))
    return int(found[1]) if found else None
