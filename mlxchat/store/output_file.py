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

from mlxchat.errors import OutputError
from mlxchat.files import force_to_disk, is_at, open_locked, reported_as, sync_directory, write_all

TAIL_BYTES = 4096
MODE = 0o644  # of a new file, before the umask


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two characters of the output, `bytes` after its beginning. `digest` verifies
    the last `TAIL_BYTES` before it."""

    bytes: int
    digest: str


class OutputFile(AbstractContextManager["OutputFile"]):
    """Text written to a file, which no other run writes at the same time.

    This process buffers nothing, so killing it loses nothing; only `sync` protects from a power
    cut. After a failure nothing more is written, but the position that `sync` last returned can
    still be resumed. A file that `is_new` is removed if it stays empty and is not ended.
    """

    def __init__(
        self, path: Path, descriptor: int, size_bytes: int = 0, *, is_new: bool = False
    ) -> None:
        self._path = path
        self._descriptor = descriptor
        self._bytes = size_bytes
        self._may_go = is_new
        self._failed = False
        sync_directory(path.parent)

    @classmethod
    def open(cls, path: Path, resume_at: Position | None = None) -> "OutputFile":
        """Create the file, or resume it at `resume_at`, removing everything written after that.

        Raises OutputError, before changing anything, if a new file is not empty; if the file to
        resume is missing or has different text before the position; and if the system refuses.
        """
        is_new = _size_of(path) is None
        if is_new and resume_at is not None and resume_at.bytes:
            raise OutputError(f"{path} is missing, but the checkpoint continues it: restore it")
        descriptor = open_alone(path, os.O_RDWR | os.O_CREAT)
        try:
            if resume_at is None:
                if os.fstat(descriptor).st_size:
                    raise OutputError(
                        f"{path} exists and is not empty: choose another name, or delete it"
                    )
                return cls(path, descriptor, is_new=is_new)
            with _writing(path):
                if _digest(descriptor, resume_at.bytes) != resume_at.digest:
                    raise OutputError(
                        f"{path} does not have the text that the checkpoint continues: it has "
                        "been changed since; restore it, or start over with another --checkpoint"
                    )
                os.ftruncate(descriptor, resume_at.bytes)
            return cls(path, descriptor, resume_at.bytes)
        except BaseException:
            os.close(descriptor)
            raise

    def write(self, text: str) -> None:
        """Write all as UTF-8. Raises OutputError; if the file was deleted, a new one has it."""
        data = text.encode("utf-8", "replace")
        if data:
            with self._using() as descriptor:
                write_all(descriptor, data, self._bytes)
            self._bytes += len(data)

    def sync(self) -> Position:
        """Force everything written to the disk; return its end. Raises OutputError."""
        with self._using() as descriptor:
            force_to_disk(descriptor)
            return Position(self._bytes, _digest(descriptor, self._bytes))

    def end(self) -> None:
        """Sync and close the complete output. Raises OutputError, also if it has lost its name."""
        self.sync()
        self.check_name()
        self._may_go = False
        self.close()

    def check_name(self) -> None:
        """Raises OutputError if the file has been moved or replaced."""
        if not is_at(self._descriptor, self._path):
            raise OutputError(f"{self._path} was moved or replaced: put its text back")

    def close(self) -> None:
        """Close the file, and remove a new one to which nothing was written, unless it was ended;
        a second call does nothing. Raises OutputError if a write fails late."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        with _writing(self._path):
            try:
                size = self._bytes or os.fstat(descriptor).st_size
                if self._may_go and not size and is_at(descriptor, self._path):
                    self._path.unlink()
            finally:
                os.close(descriptor)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # Report the first error, not one that follows from it.
        with suppress(*([OutputError] if error is not None else [])):
            self.close()

    @contextmanager
    def _using(self) -> Iterator[int]:
        """The descriptor of the file, as it was written."""
        if self._failed:
            raise OutputError(f"cannot write {self._path}: an earlier write failed")
        try:
            with _writing(self._path):
                self._check_unchanged()
                yield self._descriptor
        except BaseException:
            # It is unknown how much was written.
            self._failed = True
            raise

    def _check_unchanged(self) -> None:
        """Raise OutputError if another program deleted the file, or wrote to it."""
        status = os.fstat(self._descriptor)
        if status.st_nlink and status.st_size == self._bytes:
            return
        if status.st_nlink:
            raise OutputError(f"{self._path} was changed by another program")
        kept = _free_name(self._path)
        action = f"save the text of {self._path}, which was deleted"
        with reported_as(OutputError, action), kept.open("xb") as copy:
            copy.write(os.pread(self._descriptor, self._bytes, 0))
            copy.flush()
            force_to_disk(copy.fileno())
        raise OutputError(f"{self._path} was deleted or replaced: the text so far is in {kept}")


def set_aside(path: Path) -> Path | None:
    """Rename an output that begins anew, so that its text is kept; return the new name, if there is
    any text. Raises OutputError, also if another process writes it."""
    if not _size_of(path):
        return None
    kept = _free_name(path)
    with os.fdopen(open_alone(path, os.O_RDONLY)), reported_as(OutputError, f"rename {path}"):
        path.rename(kept)
    return kept


def _writing(path: Path) -> AbstractContextManager[None]:
    return reported_as(OutputError, f"write {path}")


def _free_name(path: Path) -> Path:
    """The path, if nothing is there, or else the first of PATH.1, PATH.2 …"""
    names = chain([path], (path.with_name(f"{path.name}.{number}") for number in count(1)))
    return next(each for each in names if not os.path.lexists(each))


def open_alone(path: Path, flags: int) -> int:
    """Open the file so that no other process writes it. Raises OutputError, as for a pipe."""
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
        is_directory = stat.S_ISDIR(status.st_mode)
        what = "it is a directory" if is_directory else "not a regular file: use > instead"
        raise OutputError(f"cannot write {path}: {what}")
    return status.st_size


def _digest(descriptor: int, end: int) -> str:
    """Of the last bytes before `end`."""
    length = min(TAIL_BYTES, end)
    return blake2b(os.pread(descriptor, length, end - length), digest_size=16).hexdigest()
