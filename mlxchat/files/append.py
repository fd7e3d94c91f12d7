"""Files that only grow: by whole pieces, of which a crash leaves nothing once the next is appended,
or by lines. How much of a file is good is known to whoever reads it."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from mlxchat.files.disk import force_to_disk, open_file, sync_directory, write_all


class AppendFile:
    """The file at `path`, of `size_bytes` now. It is opened for each piece, and never made anew:
    a file that was removed is an error, not an empty file."""

    def __init__(self, path: Path, size_bytes: int = 0) -> None:
        self.path = path
        self._most_bytes = size_bytes

    def create(self) -> None:
        """Make it, empty, for its owner only. Raises OSError, also if there is one."""
        os.close(open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        sync_directory(self.path.parent)

    def append(self, good_bytes: int, piece: bytes, unforced: bytes = b"") -> OSError | None:
        """Put `piece` after the first `good_bytes`, and force it to the disk.

        Raises OSError if it could not be written. What may be left of it then lies after the
        good bytes, and goes when the next one is appended. Nothing else is ever cut off: a file
        that others have changed is left as it is, with an OSError.

        Returns an OSError if it was written but may never reach the disk. Pass it with the next
        piece, as `unforced`, the last of the good bytes: only what is written again is forced
        again. The same bytes in the same place do no harm, however that ends.
        """
        descriptor = open_file(self.path, os.O_WRONLY)
        try:
            self._cut(descriptor, good_bytes)
            # Known before it is so: wherever this is interrupted, what is left can be recognized.
            self._most_bytes = good_bytes + len(piece)
            try:
                write_all(descriptor, unforced + piece, good_bytes - len(unforced))
            except BaseException:
                with suppress(OSError):
                    self._cut(descriptor, good_bytes)
                raise
            try:
                force_to_disk(descriptor)
            except OSError as error:
                return error
            return None
        finally:
            os.close(descriptor)

    def _cut(self, descriptor: int, good_bytes: int) -> None:
        size = os.fstat(descriptor).st_size
        if not good_bytes <= size <= self._most_bytes:
            raise OSError(errno.ESTALE, "another program has changed it")
        if size > good_bytes:
            os.ftruncate(descriptor, good_bytes)


def append_line(path: Path, line: str) -> None:
    """Append `line` to `path`, which is made if it is not there, on a line of its own even if the
    last one was cut short. Raises OSError."""
    descriptor = open_to_append(path)
    try:
        data = f"{line}\n".encode()
        write_all(descriptor, b"\n" + data if _ends_within_a_line(descriptor) else data)
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
