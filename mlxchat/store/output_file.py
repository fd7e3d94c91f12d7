"""Writes the text of a long generation to files, in volumes if it grows large.

A position is a place in the output. Resuming there removes everything written after it, so that the
final text is that of an uninterrupted run. stdout is handled elsewhere.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, count
from pathlib import Path

from mlxchat.errors import OutputError, UsageError
from mlxchat.files import (
    force_to_disk,
    is_at,
    open_locked,
    reported_as,
    sync_directory,
    write_all,
)
from mlxchat.wording import Field

TAIL_BYTES = 4096
LONGEST_CHARACTER = 4  # bytes of UTF-8
MIN_ROTATE_BYTES = LONGEST_CHARACTER
COPIED_BYTES = 1 << 20
MODE = 0o644  # of a new file, before the umask


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two characters of the output: `bytes` into `volume`, `total_bytes` in all.

    `digest` verifies the last `TAIL_BYTES` before it in that volume.
    """

    volume: int
    bytes: int
    total_bytes: int
    digest: str


class OutputFile:
    """Text written to a file and, with `rotate_bytes`, to further volumes of at most that size.

    The end of a volume depends only on the text, not on how it is split into pieces: after the
    first line end in the last sixteenth of `rotate_bytes`, or else after the last whole character
    that fits. This process buffers nothing, so killing it loses nothing; only `sync` protects from
    a power cut. After a failure nothing more is written, but the position that `sync` last
    returned can still be resumed.
    """

    def __init__(
        self, path: Path, descriptor: int, at: Position, *, tail: bytes, rotate_bytes: int | None
    ) -> None:
        self._path = path
        self._descriptor = descriptor
        self._volume = at.volume
        self._bytes = at.bytes
        self._total_bytes = at.total_bytes
        self._tail = tail
        self._rotate_bytes = rotate_bytes
        # Whether the directory on the disk may not list the latest volume yet.
        self._directory_is_stale = True
        self._failed = False

    @classmethod
    def open(
        cls, path: Path, resume_at: Position | None = None, rotate_bytes: int | None = None
    ) -> "OutputFile":
        """Create the file, or resume it at `resume_at`, removing everything written after that.

        A resumed run must use the original `rotate_bytes`. Raises OutputError, before changing
        anything, if a new file is not empty; if the file to resume is missing, shorter than the
        position or has different text before it; if another file has the name of a later volume;
        and if the system refuses.
        """
        if rotate_bytes is not None and rotate_bytes < MIN_ROTATE_BYTES:
            raise UsageError(Field("rotate_bytes"), f" must be at least {MIN_ROTATE_BYTES} bytes")
        if resume_at is None:
            return cls._begin(path, rotate_bytes)
        return cls._resume(path, resume_at, rotate_bytes)

    @classmethod
    def _begin(cls, path: Path, rotate_bytes: int | None) -> "OutputFile":
        with _writing(path):
            _file_size(path)
            if rotate_bytes is not None and os.path.lexists(volume_path(path, 1)):
                raise OutputError(
                    f"{volume_path(path, 1)} exists, and this output might need the name: choose "
                    "another name, or move that file away"
                )
        descriptor = _open_alone(path, os.O_RDWR | os.O_CREAT)
        if os.fstat(descriptor).st_size:
            os.close(descriptor)
            raise OutputError(
                f"{path} exists and is not empty: choose another name, or continue it with ",
                Field("resume"),
            )
        return cls(path, descriptor, START, tail=b"", rotate_bytes=rotate_bytes)

    @classmethod
    def _resume(cls, path: Path, at: Position, rotate_bytes: int | None) -> "OutputFile":
        volume = volume_path(path, at.volume)
        with _writing(volume):
            size = _file_size(volume)
            _check_length(volume, size, at)
        descriptor = _open_alone(volume, os.O_RDWR)
        try:
            with _writing(volume):
                tail = _checked_tail(volume, descriptor, at)
                later = _later_volumes(path, at.volume, size or 0, rotate_bytes)
                # Delete the last one first: if interrupted, this can start over.
                for each in reversed(later):
                    each.unlink()
                if later:
                    sync_directory(path.parent)
                os.ftruncate(descriptor, at.bytes)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, at, tail=tail, rotate_bytes=rotate_bytes)

    @property
    def position(self) -> Position:
        """The end of the written text. It can be resumed at only after `sync` has returned it."""
        self._check_writable()
        return Position(self._volume, self._bytes, self._total_bytes, _digest(self._tail))

    @property
    def total_bytes(self) -> int:
        """Bytes of UTF-8 in all volumes; cheaper than `position`."""
        return self._total_bytes

    @property
    def volume_path(self) -> Path:
        """The current file."""
        return volume_path(self._path, self._volume)

    def write(self, text: str) -> None:
        """Write the whole text as UTF-8. Raises OutputError, also if the file was deleted: then the
        text so far is in a new file."""
        self._check_writable()
        data = text.encode("utf-8", "replace")
        if data:
            self._check_unchanged()
        while data:
            fitting = bytes_before_cut(data, self._bytes, self._tail[-1:], self._rotate_bytes)
            if fitting:
                with self._failing():
                    self._write_all(data[:fitting])
                data = data[fitting:]
            else:
                self._begin_next_volume()

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
        if not is_at(self._descriptor, self.volume_path):
            raise OutputError(f"{self.volume_path} was moved or replaced: it lacks this text")
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing. Raises OutputError if a write fails late."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        with self._failing():
            os.close(descriptor)

    def __enter__(self) -> "OutputFile":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # Report the first error, not one that follows from it.
        with suppress(*([OutputError] if error is not None else [])):
            self.close()

    def _write_all(self, data: bytes) -> None:
        write_all(self._descriptor, data, self._bytes)
        self._bytes += len(data)
        self._total_bytes += len(data)
        self._tail = (self._tail + data)[-TAIL_BYTES:]

    def _begin_next_volume(self) -> None:
        with self._failing():
            # `sync` will only force the next volume.
            force_to_disk(self._descriptor)
        following = volume_path(self._path, self._volume + 1)
        with self._failing(following):
            descriptor = os.open(following, os.O_RDWR | os.O_CREAT | os.O_EXCL, MODE)
        self.close()
        self._descriptor = descriptor
        self._volume += 1
        self._bytes = 0
        self._tail = b""
        self._directory_is_stale = True

    @contextmanager
    def _failing(self, path: Path | None = None) -> Iterator[None]:
        try:
            with _writing(path or self.volume_path):
                yield
        except BaseException:
            # It is unknown how much was written.
            self._failed = True
            raise

    def _check_writable(self) -> None:
        if self._failed:
            raise OutputError(f"cannot write {self.volume_path}: an earlier write failed")
        assert self._descriptor >= 0, "closed"

    def _check_unchanged(self) -> None:
        """Raise OutputError if another program deleted the file, or wrote to it."""
        status = os.fstat(self._descriptor)
        if status.st_nlink and status.st_size == self._bytes:
            return
        self._failed = True
        if status.st_nlink:
            raise OutputError(f"{self.volume_path} was changed by another program")
        path, kept = self.volume_path, _free_name(self.volume_path)
        with reported_as(OutputError, f"save the text of {path}, which was deleted"):
            copy = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
            try:
                for offset in range(0, self._bytes, COPIED_BYTES):
                    write_all(copy, os.pread(self._descriptor, COPIED_BYTES, offset), offset)
                force_to_disk(copy)
            finally:
                os.close(copy)
        raise OutputError(f"{path} was deleted or replaced: the text so far is in {kept}")


def _writing(path: Path) -> AbstractContextManager[None]:
    return reported_as(OutputError, f"write {path}")


def volume_path(path: Path, volume: int) -> Path:
    """The file of a volume: OUT.txt is volume 0, OUT.001.txt volume 1, and so on."""
    return path if volume == 0 else path.with_name(f"{path.stem}.{volume:03d}{path.suffix}")


def set_aside(path: Path, rotate_bytes: int | None) -> list[Path]:
    """Rename the volumes of an output that begins anew, so that their text is kept; return the new
    names. Raises OutputError, also if another process writes them."""
    volumes: list[Path] = []
    for number in count() if rotate_bytes is not None else (0,):
        volume = volume_path(path, number)
        with _writing(volume):
            if not _file_size(volume):
                break
        volumes.append(volume)
    return [_renamed(volume) for volume in reversed(volumes)][::-1]


def _renamed(volume: Path) -> Path:
    kept = _free_name(volume)
    descriptor = _open_alone(volume, os.O_RDONLY)
    try:
        with reported_as(OutputError, f"rename {volume}"):
            volume.rename(kept)
    finally:
        os.close(descriptor)
    return kept


def _free_name(path: Path) -> Path:
    """The path, if nothing is there, or else the first of PATH.1, PATH.2 …"""
    names = chain([path], (path.with_name(f"{path.name}.{number}") for number in count(1)))
    return next(each for each in names if not os.path.lexists(each))


def _open_alone(path: Path, flags: int) -> int:
    """Open the file so that no other process writes it. Raises OutputError."""
    with _writing(path):
        descriptor = open_locked(path, flags, MODE)
    if descriptor is None:
        raise OutputError(f"{path} is being written by another process: choose another name")
    return descriptor


def bytes_before_cut(data: bytes, filled: int, last: bytes, rotate_bytes: int | None) -> int:
    """How many bytes of the UTF-8 text `data` still belong in a volume that has `filled` bytes.

    `last` is the volume's last byte. 0 means the volume is complete, which is certain only if more
    text follows.
    """
    if rotate_bytes is None:
        return len(data)
    soft = _soft_bytes(rotate_bytes)
    if filled >= soft and last == b"\n":
        return 0
    line_end = data.find(b"\n", max(soft - filled - 1, 0), rotate_bytes - filled)
    if line_end >= 0:
        return line_end + 1
    room = rotate_bytes - filled
    if len(data) <= room:
        return len(data)
    while room and data[room] & 0b1100_0000 == 0b1000_0000:
        room -= 1
    return room


def _soft_bytes(rotate_bytes: int) -> int:
    """The size from which a line end completes a volume."""
    return rotate_bytes - rotate_bytes // 16


def _file_size(path: Path) -> int | None:
    """Size of a regular file; None if it does not exist. Raises OutputError for anything else."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        what = "it is a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise OutputError(f"cannot write {path}: {what}")
    return status.st_size


def _check_length(path: Path, size: int | None, at: Position) -> None:
    if size is None:
        raise OutputError(f"{path} is missing, but the checkpoint continues it: restore it")
    if size < at.bytes:
        raise OutputError(
            f"{path} has only {size:,} of the checkpoint's {at.bytes:,} bytes: it has been "
            "changed since; restore it, or start over without ",
            Field("resume"),
        )


def _checked_tail(path: Path, descriptor: int, at: Position) -> bytes:
    length = min(TAIL_BYTES, at.bytes)
    tail = os.pread(descriptor, length, at.bytes - length)
    if _digest(tail) != at.digest:
        raise OutputError(
            f"{path} does not end with the text that the checkpoint continues: it has been "
            "changed since; restore it, or start over without ",
            Field("resume"),
        )
    return tail


def _later_volumes(path: Path, volume: int, size: int, rotate_bytes: int | None) -> list[Path]:
    """The volumes written after `volume`, which now has `size` bytes.

    Raises OutputError if a file cannot be one of them because the previous volume is incomplete.
    """
    if rotate_bytes is None:
        return []
    minimum = min(_soft_bytes(rotate_bytes), rotate_bytes - LONGEST_CHARACTER + 1)
    later: list[Path] = []
    for number in count(volume + 1):
        following = volume_path(path, number)
        if not os.path.lexists(following):
            break
        following_size = _file_size(following)
        if size < minimum or following.is_symlink() or following_size is None:
            raise OutputError(
                f"{following} was not written by this run, which needs the name: move it away"
            )
        later.append(following)
        size = following_size
    return later


def _digest(tail: bytes) -> str:
    return blake2b(tail, digest_size=16).hexdigest()


# The start of every output: resuming here removes everything written.
START = Position(0, 0, 0, _digest(b""))
