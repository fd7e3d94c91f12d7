"""The output file of a batch: a line per result, appended in one write.

A line that was written survives the end of the process; the disk is synced about once per second,
so a power cut loses at most the lines of that second, which a second run does again.
"""

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from mlxchat.errors import ClosedPipe, OutputError, UsageError
from mlxchat.files import (
    force_to_disk,
    is_at,
    reported_as,
    sync_directory,
    try_lock,
    write_all,
)
from mlxchat.rows.finished import Finished, read_finished

MODE = 0o644  # of a new file, before the umask
SYNC_EVERY_S = 1.0


class Output(Protocol):
    """Where the lines go; as a context, which closes it."""

    finished: Finished

    def write(self, line: str, /) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, trace: object) -> None: ...


class StreamOutput:
    """Standard output, a pipe, a device: there is nothing to continue."""

    def __init__(self, write: Callable[[str], None], close: Callable[[], None] = lambda: None):
        self.finished = Finished()
        self.write = write
        self._close = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._close()


class ResultFile:
    """A file that this process alone appends to. `finished` is what it had at the beginning.

    Raises OutputError if the file is not the output of a batch, or cannot be read or written.
    """

    def __init__(
        self,
        path: Path,
        descriptor: int,
        *,
        is_new: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._descriptor = descriptor
        self._is_new = is_new
        self._clock = clock
        self._synced_s = clock()
        self._is_synced = True
        self.finished = self._repaired()

    def write(self, line: str) -> None:
        """Append the line. If the disk is full, nothing of it stays. Raises OutputError, also if
        the file has been deleted."""
        data = line.encode("utf-8", "replace")
        with reported_as(OutputError, f"write {self.path}"):
            status = os.fstat(self._descriptor)
            if not status.st_nlink:
                raise FileNotFoundError(errno.ENOENT, "it has been deleted")
            before = status.st_size
            try:
                write_all(self._descriptor, data, before)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, before)
                raise
            self._is_synced = False
            if self._clock() - self._synced_s >= SYNC_EVERY_S:
                self._sync(full=False)

    def close(self) -> None:
        """Sync and close; a second call does nothing. Raises OutputError."""
        if self._descriptor < 0:
            return
        try:
            if not self._is_synced:
                with reported_as(OutputError, f"write {self.path}"):
                    self._sync(full=True)
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Close it. If nothing came of the run, a new file does not stay behind empty."""
        if kind is not None and self._is_new and os.fstat(self._descriptor).st_size == 0:
            _remove(self._descriptor, self.path)
        # Report the first error, not one that follows from it.
        with suppress(*([OutputError] if error is not None else [])):
            self.close()

    def _sync(self, *, full: bool) -> None:
        # Set first: a failed sync is not repeated, because the system reports it only once.
        self._is_synced, self._synced_s = True, self._clock()
        force_to_disk(self._descriptor, full=full)
        if full and self._is_new:
            sync_directory(self.path.parent)

    def _repaired(self) -> Finished:
        """Read the file, cut off an unfinished last line, and end one that lacks only its end."""
        with reported_as(OutputError, f"read {self.path}"):
            with os.fdopen(os.dup(self._descriptor), "rb") as file:
                finished = read_finished(file, self.path)
            size = os.fstat(self._descriptor).st_size
        with reported_as(OutputError, f"write {self.path}"):
            if finished.good_bytes < size:
                os.ftruncate(self._descriptor, finished.good_bytes)
            if finished.lacks_end:
                write_all(self._descriptor, b"\n", size)
        return finished


def open_output(path: Path, source: BinaryIO | None = None) -> StreamOutput | ResultFile:
    """Open the output, to be continued if it is a file that exists.

    Raises UsageError if it is `source`, the file that is read, and OutputError if another process
    writes it, or it cannot be opened or continued.
    """
    path = path.expanduser()
    descriptor, is_new = _open(path)
    is_ours = False
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return _stream(path, descriptor)
        _check_other(path, status, source)
        if not try_lock(descriptor):
            raise OutputError(f"{path} is being written by another process")
        is_ours = is_new
        if is_at(descriptor, path):
            return ResultFile(path, descriptor, is_new=is_new)
    except BaseException:
        if is_ours:
            _remove(descriptor, path)
        os.close(descriptor)
        raise
    # Another process that had created it removed it before it was locked here.
    os.close(descriptor)
    return open_output(path, source)


def _open(path: Path) -> tuple[int, bool]:
    """The descriptor, and whether the file was created."""
    with reported_as(OutputError, f"write {path}"):
        if path.exists() and not path.is_file():
            # A pipe or a terminal may be open for writing only.
            return os.open(path, os.O_WRONLY), False
        flags = os.O_RDWR | os.O_CREAT
        try:
            return os.open(path, flags | os.O_EXCL, MODE), True
        except FileExistsError:
            return os.open(path, flags, MODE), False


def _remove(descriptor: int, path: Path) -> None:
    """Remove the locked file, unless another one has its name by now."""
    if is_at(descriptor, path):
        path.unlink()


def _stream(path: Path, descriptor: int) -> StreamOutput:
    def write(line: str) -> None:
        try:
            write_all(descriptor, line.encode("utf-8", "replace"))
        except BrokenPipeError as error:
            raise ClosedPipe from error
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error

    return StreamOutput(write, lambda: os.close(descriptor))


def _check_other(path: Path, status: os.stat_result, source: BinaryIO | None) -> None:
    """Raise UsageError if the output is also the input."""
    if source is None or not _has_descriptor(source):
        return
    if os.path.samestat(status, os.fstat(source.fileno())):
        raise UsageError(f"{path} is the input: write the results to another file")


def _has_descriptor(stream: BinaryIO) -> bool:
    try:
        stream.fileno()
    except (OSError, ValueError):
        return False
    return True
