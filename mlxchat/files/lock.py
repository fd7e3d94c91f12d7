"""Locks between processes: they die with the process that holds them."""

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlxchat.errors import SessionError
from mlxchat.files.disk import open_file

# Asking for the holder of a lock takes it for an instant.
_TRIES = 5
_PAUSE_S = 0.01


@contextmanager
def alone(directory: Path, on_wait: Callable[[], object] = lambda: None) -> Iterator[None]:
    """While the body runs, other processes that want to be alone here wait, after `on_wait`. Leaves
    no lock file."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        # A network's file system may be unable to lock a directory: then nobody waits.
        with suppress(OSError):
            if not _lock(descriptor, fcntl.LOCK_EX):
                on_wait()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Lock:
    """Held until `release`, or until this process ends in whatever way.

    The file at `path` is made if there is none, and stays. Raises SessionError naming the process
    that has it open, as `what`, OSError if nothing can be locked.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._descriptor = _take(path, what)
        with suppress(OSError):
            # Without it the lock holds as well, and only its holder cannot be named.
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._descriptor < 0:
            return
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = -1


def holder(path: Path) -> int | None:
    """The process that holds the lock; None if none does or it cannot be found out."""
    with suppress(OSError):
        descriptor = open_file(path, os.O_RDONLY)
        try:
            # A released lock names no process; one whose process was killed is free.
            process = _written_in(descriptor)
            return None if process is None or _lock(descriptor, fcntl.LOCK_SH) else process
        finally:
            os.close(descriptor)
    return None


def _take(path: Path, what: str) -> int:
    """The descriptor that holds the lock."""
    process: int | None = None
    for _ in range(_TRIES):
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            if _lock(descriptor, fcntl.LOCK_EX) and _is_at(descriptor, path):
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


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the file still has that name: it could have been removed or replaced between being
    opened and being locked."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _written_in(descriptor: int) -> int | None:
    found = re.fullmatch(rb"([1-9][0-9]{0,9})\n", os.pread(descriptor, 16, 0))
    return int(found[1]) if found else None
