"""The text of a long generation in files: written piece by piece, in volumes where it grows large.

A position names a place in it. Resuming there takes back whatever was written later, so that the
text is in the end the one of a run that was never interrupted. What goes to stdout is not ours.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

from mlxchat.errors import OutputError, UsageError
from mlxchat.files import force_to_disk, reported_as, sync_directory, write_all
from mlxchat.wording import Field

TAIL_BYTES = 4096
LONGEST_CHARACTER = 4  # bytes of UTF-8
LEAST_ROTATE_BYTES = LONGEST_CHARACTER
MODE = 0o644  # of a new part, less what the umask takes


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two characters of the output: `bytes` into `volume`, `total_bytes` in all.

    `digest` tells whether the last `TAIL_BYTES` before it, in that volume, are those written then.
    """

    volume: int
    bytes: int
    total_bytes: int
    digest: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Position":
        return cls(**value)


class OutputFile:
    """Text written to a file and, with `rotate_bytes`, to further volumes of at most that size.

    Where one volume ends depends on the text alone, not on the pieces in which it comes: behind the
    first line end in the last sixteenth of `rotate_bytes`, or else behind the last whole character
    that fits. Nothing is held back in this process, so that killing it loses nothing; only `sync`
    makes it safe from a power cut. After one failure nothing more is written, and the place that
    `sync` returned last can still be resumed.
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
        # The directory may not know yet, on the disk, of the latest volume.
        self._directory_is_behind = True
        self._failed = False

    @classmethod
    def open(
        cls, path: Path, resume_at: Position | None = None, rotate_bytes: int | None = None
    ) -> "OutputFile":
        """Begin the file, or resume it at `resume_at`: all that was written later is taken back.

        A resumed run must rotate as the run that it resumes. Raises OutputError, before anything
        is changed, if the file to begin is not empty, if the file to resume is missing, shorter
        than the position or has other text before it, if a file that is not ours has the name of
        a later volume, and if the system refuses.
        """
        if rotate_bytes is not None and rotate_bytes < LEAST_ROTATE_BYTES:
            raise UsageError(Field("rotate_bytes"), f" must be at least {LEAST_ROTATE_BYTES} bytes")
        if resume_at is None:
            return cls._begin(path, rotate_bytes)
        return cls._resume(path, resume_at, rotate_bytes)

    @classmethod
    def _begin(cls, path: Path, rotate_bytes: int | None) -> "OutputFile":
        with _writing(path):
            size = _file_size(path)
            if size:
                raise OutputError(
                    f"{path} exists and is not empty: choose another name, or continue it with ",
                    Field("resume"),
                )
            if rotate_bytes is not None and os.path.lexists(volume_path(path, 1)):
                raise OutputError(
                    f"{volume_path(path, 1)} exists, where this output would go on: choose another "
                    "name, or move it away"
                )
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, MODE)
        return cls(path, descriptor, START, tail=b"", rotate_bytes=rotate_bytes)

    @classmethod
    def _resume(cls, path: Path, at: Position, rotate_bytes: int | None) -> "OutputFile":
        volume = volume_path(path, at.volume)
        with _writing(volume):
            size = _file_size(volume)
            _check_length(volume, size, at)
            descriptor = os.open(volume, os.O_RDWR)
        try:
            with _writing(volume):
                tail = _checked_tail(volume, descriptor, at)
                later = _later_volumes(path, at.volume, size or 0, rotate_bytes)
                # The last one first: whenever this is cut short, it can be begun again.
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
        """The end of what has been written. It is no place to resume at before `sync` says so."""
        self._check_writable()
        return Position(self._volume, self._bytes, self._total_bytes, _digest(self._tail))

    @property
    def total_bytes(self) -> int:
        """Bytes of UTF-8 in all volumes together; cheaper than `position`."""
        return self._total_bytes

    @property
    def volume_path(self) -> Path:
        """The file that is being written."""
        return volume_path(self._path, self._volume)

    def write(self, text: str) -> None:
        """Write the text as UTF-8 to its last byte. Raises OutputError if that fails."""
        self._check_writable()
        data = text.encode("utf-8", "replace")
        while data:
            fitting = bytes_before_cut(data, self._bytes, self._tail[-1:], self._rotate_bytes)
            if fitting:
                with self._failing():
                    self._write_all(data[:fitting])
                data = data[fitting:]
            else:
                self._begin_next_volume()

    def sync(self) -> Position:
        """Force all that has been written to the disk, and return where it ends.

        Raises OutputError if that fails.
        """
        self._check_writable()
        with self._failing():
            force_to_disk(self._descriptor)
        if self._directory_is_behind:
            sync_directory(self._path.parent)
            self._directory_is_behind = False
        return self.position

    def close(self) -> None:
        """End writing; a second time does nothing. Raises OutputError if a write fails late."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        with self._failing():
            os.close(descriptor)

    def __enter__(self) -> "OutputFile":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # What went wrong first is the thing to tell.
        with suppress(*([OutputError] if error is not None else [])):
            self.close()

    def _write_all(self, data: bytes) -> None:
        write_all(self._descriptor, data, self._bytes)
        self._bytes += len(data)
        self._total_bytes += len(data)
        self._tail = (self._tail + data)[-TAIL_BYTES:]

    def _begin_next_volume(self) -> None:
        with self._failing():
            # From now on `sync` forces the next volume only.
            force_to_disk(self._descriptor)
        following = volume_path(self._path, self._volume + 1)
        with self._failing(following):
            descriptor = os.open(following, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        self.close()
        self._descriptor = descriptor
        self._volume += 1
        self._bytes = 0
        self._tail = b""
        self._directory_is_behind = True

    @contextmanager
    def _failing(self, path: Path | None = None) -> Iterator[None]:
        try:
            with _writing(path or self.volume_path):
                yield
        except BaseException:
            # How much of it is in the file is no longer known.
            self._failed = True
            raise

    def _check_writable(self) -> None:
        if self._failed:
            raise OutputError(f"cannot write {self.volume_path}: it failed before")
        assert self._descriptor >= 0, "closed"


def _writing(path: Path) -> AbstractContextManager[None]:
    return reported_as(OutputError, f"write {path}")


def volume_path(path: Path, volume: int) -> Path:
    """The file of a volume: OUT.txt is volume 0, OUT.001.txt volume 1, and so on."""
    return path if volume == 0 else path.with_name(f"{path.stem}.{volume:03d}{path.suffix}")


def bytes_before_cut(data: bytes, filled: int, last: bytes, rotate_bytes: int | None) -> int:
    """How many bytes of the UTF-8 text `data` still belong to a volume that has `filled` bytes.

    `last` is the volume's last byte. 0 says that the volume has ended, which only holds if more
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
    """The size from which on a line end is the end of a volume."""
    return rotate_bytes - rotate_bytes // 16


def _file_size(path: Path) -> int | None:
    """Bytes of a regular file, None if there is nothing. Raises OutputError for other things."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise OutputError(f"cannot write {path}: it is {what}")
    return status.st_size


def _check_length(path: Path, size: int | None, at: Position) -> None:
    if size is None:
        raise OutputError(f"{path} is missing, and the checkpoint goes on from it: put it back")
    if size < at.bytes:
        raise OutputError(
            f"{path} is shorter than the checkpoint says, {size:,} of {at.bytes:,} bytes: it has "
            "changed since; restore what was written, or start again without ",
            Field("resume"),
        )


def _checked_tail(path: Path, descriptor: int, at: Position) -> bytes:
    length = min(TAIL_BYTES, at.bytes)
    tail = os.pread(descriptor, length, at.bytes - length)
    if _digest(tail) != at.digest:
        raise OutputError(
            f"{path} does not end with the text that the checkpoint continues: it has changed "
            "since; restore what was written, or start again without ",
            Field("resume"),
        )
    return tail


def _later_volumes(path: Path, volume: int, size: int, rotate_bytes: int | None) -> list[Path]:
    """The volumes that were written after `volume`, which has `size` bytes now.

    Raises OutputError if a file cannot be one, since the volume before it had not ended.
    """
    if rotate_bytes is None:
        return []
    least = min(_soft_bytes(rotate_bytes), rotate_bytes - LONGEST_CHARACTER + 1)
    later: list[Path] = []
    for number in count(volume + 1):
        following = volume_path(path, number)
        if not os.path.lexists(following):
            break
        following_size = _file_size(following)
        if size < least or following.is_symlink() or following_size is None:
            raise OutputError(
                f"{following} was not written by the run to go on with, and is in its way: move "
                "it away"
            )
        later.append(following)
        size = following_size
    return later


def _digest(tail: bytes) -> str:
    return blake2b(tail, digest_size=16).hexdigest()


# Where every output begins: resumed there, all that was written is taken back.
START = Position(0, 0, 0, _digest(b""))
