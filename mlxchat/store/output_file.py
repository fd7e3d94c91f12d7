"""Writes the text of a long generation to a file.

Resuming at a position removes everything written after it, so that the final text is that of an
uninterrupted run. stdout is handled elsewhere.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, count
from pathlib import Path
from typing import Self

from mlxchat.errors import OutputError
from mlxchat.files import (
    force_to_disk,
    is_at,
    open_locked,
    reported_as,
    sync_directory,
    write_all,
)

TAIL_BYTES = 4096
COPIED_BYTES = 1 << 20
MODE = 0o644  # of a new file, before the umask


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two characters of the output, `bytes` after its beginning. `digest` verifies
    the last `TAIL_BYTES` before it."""

    bytes: int
    digest: str


class OutputFile:
    """Text written to a file, which no other run writes at the same time.

    This process buffers nothing, so killing it loses nothing; only `sync` protects from a power
    cut. After a failure nothing more is written, but the position that `sync` last returned can
    still be resumed.
    """

    def __init__(self, path: Path, descriptor: int, tail: bytes = b"", size_bytes: int = 0) -> None:
        self._path = path
        self._descriptor = descriptor
        self._tail = tail
        self._bytes = size_bytes
        # Whether the directory on the disk may not list the file yet.
        self._directory_is_stale = True
        self._failed = False
        # Whether it did not exist before, so that it may be removed.
        self._is_ours = False

    @classmethod
    def open(cls, path: Path, resume_at: Position | None = None) -> "OutputFile":
        """Create the file, or resume it at `resume_at`, removing everything written after that.

        Raises OutputError, before changing anything, if a new file is not empty; if the file to
        resume is missing, shorter than the position or has different text before it; and if the
        system refuses.
        """
        size = _size_of(path)
        if resume_at is not None and resume_at.bytes:
            _check_length(path, size, resume_at)
        descriptor = open_alone(path, os.O_RDWR | os.O_CREAT)
        try:
            if resume_at is None:
                _check_empty(path, descriptor)
                output = cls(path, descriptor)
                output._is_ours = size is None
                return output
            with _writing(path):
                tail = _checked_tail(path, descriptor, resume_at)
                os.ftruncate(descriptor, resume_at.bytes)
            return cls(path, descriptor, tail, resume_at.bytes)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def position(self) -> Position:
        """The end of the written text. It can be resumed at only after `sync` has returned it."""
        self._check_writable()
        return Position(self._bytes, _digest(self._tail))

    def write(self, text: str) -> None:
        """Write the whole text as UTF-8. Raises OutputError, also if the file was deleted: then the
        text so far is in a new file."""
        self._check_writable()
        data = text.encode("utf-8", "replace")
        if not data:
            return
        self._check_unchanged()
        with self._failing():
            write_all(self._descriptor, data, self._bytes)
        self._bytes += len(data)
        self._tail = (self._tail + data)[-TAIL_BYTES:]

    def sync(self) -> Position:
        """Force everything written to the disk; return its end. Raises OutputError."""
        self._check_writable()
        self._check_unchanged()
        with self._failing():
            force_to_disk(self._descriptor)
        if self._directory_is_stale:
            sync_directory(self._path.parent)
            self._directory_is_stale = False
        return self.position

    def end(self) -> None:
        """Sync and close the complete output. Raises OutputError, also if it has lost its name."""
        self.sync()
        if not is_at(self._descriptor, self._path):
            raise OutputError(f"{self._path} was moved or replaced: it lacks this text")
        self.close()

    def close(self) -> None:
        """Close the file, and remove a new one that is empty because writing failed; a second call
        does nothing. Raises OutputError if a write fails late."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        with self._failing():
            is_useless = self._failed and not os.fstat(descriptor).st_size
            if is_useless and self._is_ours and is_at(descriptor, self._path):
                self._path.unlink()
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._failed = self._failed or error is not None
        # Report the first error, not one that follows from it.
        with suppress(*([OutputError] if error is not None else [])):
            self.close()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            with _writing(self._path):
                yield
        except BaseException:
            # It is unknown how much was written.
            self._failed = True
            raise

    def _check_writable(self) -> None:
        if self._failed:
            raise OutputError(f"cannot write {self._path}: an earlier write failed")
        assert self._descriptor >= 0, "closed"

    def _check_unchanged(self) -> None:
        """Raise OutputError if another program deleted the file, or wrote to it."""
        status = os.fstat(self._descriptor)
        if status.st_nlink and status.st_size == self._bytes:
            return
        self._failed = True
        if status.st_nlink:
            raise OutputError(f"{self._path} was changed by another program")
        kept = _free_name(self._path)
        with reported_as(OutputError, f"save the text of {self._path}, which was deleted"):
            copy = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
            try:
                for offset in range(0, self._bytes, COPIED_BYTES):
                    write_all(copy, os.pread(self._descriptor, COPIED_BYTES, offset), offset)
                force_to_disk(copy)
            finally:
                os.close(copy)
        raise OutputError(f"{self._path} was deleted or replaced: the text so far is in {kept}")


def set_aside(path: Path) -> Path | None:
    """Rename an output that begins anew, so that its text is kept; return the new name, if there is
    any text. Raises OutputError, also if another process writes it."""
    if not _size_of(path):
        return None
    kept = _free_name(path)
    descriptor = open_alone(path, os.O_RDONLY)
    try:
        with reported_as(OutputError, f"rename {path}"):
            path.rename(kept)
    finally:
        os.close(descriptor)
    return kept


def _writing(path: Path) -> AbstractContextManager[None]:
    return reported_as(OutputError, f"write {path}")


def _free_name(path: Path) -> Path:
    """The path, if nothing is there, or else the first of PATH.1, PATH.2 …"""
    names = chain([path], (path.with_name(f"{path.name}.{number}") for number in count(1)))
    return next(each for each in names if not os.path.lexists(each))


def open_alone(path: Path, flags: int) -> int:
    """Open the file so that no other process writes it. Raises OutputError, also for a pipe or a
    device."""
    _size_of(path)
    with _writing(path):
        descriptor = open_locked(path, flags, MODE)
    if descriptor is None:
        raise OutputError(f"{path} is being written by another process: choose another name")
    return descriptor


def _size_of(path: Path) -> int | None:
    """Size of a regular file; None if it does not exist. Raises OutputError for anything else."""
    with _writing(path):
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
    if not stat.S_ISREG(status.st_mode):
        what = "it is a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise OutputError(f"cannot write {path}: {what}")
    return status.st_size


def _check_empty(path: Path, descriptor: int) -> None:
    if os.fstat(descriptor).st_size:
        raise OutputError(
            f"{path} exists and is not empty: choose another name, or continue it with --resume"
        )


def _check_length(path: Path, size: int | None, at: Position) -> None:
    if size is None:
        raise OutputError(f"{path} is missing, but the checkpoint continues it: restore it")
    if size < at.bytes:
        raise OutputError(
            f"{path} has only {size:,} of the checkpoint's {at.bytes:,} bytes: it has "
            "been changed since; restore it, or start over without --resume"
        )


def _checked_tail(path: Path, descriptor: int, at: Position) -> bytes:
    length = min(TAIL_BYTES, at.bytes)
    tail = os.pread(descriptor, length, at.bytes - length)
    if _digest(tail) != at.digest:
        raise OutputError(
            f"{path} does not end with the text that the checkpoint continues: it has "
            "been changed since; restore it, or start over without --resume"
        )
    return tail


def _digest(tail: bytes) -> str:
    return blake2b(tail, digest_size=16).hexdigest()


# The start of every output: resuming here removes everything written.
START = Position(0, _digest(b""))
