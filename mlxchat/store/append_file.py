"""A file that only ever grows, by whole pieces: one is all there, or will be taken away again.

What the pieces mean is `journal`'s business, and so is how much of the file is good.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from mlxchat.files import force_to_disk, sync_directory

# By names of their own, so that a test can let them fail.
write, fsync = os.write, force_to_disk

# No write ever follows a link out of the directory or waits for the reader of a pipe.
WRITING = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK

# What a file system says that cannot force a file to the disk; others say that it failed.
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


class AppendFile:
    """The file at `path`, of `size_bytes` now. It is opened for each piece, and never made anew:
    a file that was removed is an error, not an empty file."""

    def __init__(self, path: Path, size_bytes: int = 0) -> None:
        self.path = path
        self._most_bytes = size_bytes

    def create(self) -> None:
        """Make it, empty, for its owner only. Raises OSError, also where there is one."""
        os.close(os.open(self.path, WRITING | os.O_CREAT | os.O_EXCL, 0o600))
        sync_directory(self.path.parent)

    def append(self, good_bytes: int, piece: bytes, unforced: bytes = b"") -> OSError | None:
        """Put `piece` behind the first `good_bytes`, and force it to the disk.

        Raises OSError where it could not be written. What may be left of it then lies behind the
        good bytes, and goes when the next one is appended. Nothing else is ever cut off: a file
        that others have changed is left as it is, with an OSError.

        Returns an OSError where it was written and perhaps never reaches the disk. It is to be
        given with the next piece, as `unforced`, the last of the good bytes: only what is written
        again is forced again. The same bytes in the same place do no harm, however that ends.
        """
        descriptor = os.open(self.path, WRITING)
        try:
            self._cut(descriptor, good_bytes)
            # Known before it is so: wherever this is interrupted, what is left can be told.
            self._most_bytes = good_bytes + len(piece)
            os.lseek(descriptor, good_bytes - len(unforced), os.SEEK_SET)
            try:
                write_all(descriptor, unforced + piece)
            except BaseException:
                with suppress(OSError):
                    self._cut(descriptor, good_bytes)
                raise
            return _force(descriptor)
        finally:
            os.close(descriptor)

    def _cut(self, descriptor: int, good_bytes: int) -> None:
        size = os.fstat(descriptor).st_size
        if not good_bytes <= size <= self._most_bytes:
            raise OSError(errno.ESTALE, "another program has changed it")
        if size > good_bytes:
            os.ftruncate(descriptor, good_bytes)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it, in as many pieces as the system takes it. Raises OSError."""
    rest = memoryview(data)
    while rest:
        written = write(descriptor, rest)
        if written <= 0:
            raise OSError(errno.EIO, "nothing can be written to it")
        rest = rest[written:]


def open_to_read(path: Path) -> BinaryIO:
    """Open a file, and nothing that could block or never end. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file")
    return os.fdopen(descriptor, "rb")


def _force(descriptor: int) -> OSError | None:
    try:
        fsync(descriptor)
    except OSError as error:
        return None if error.errno in _NO_FSYNC else error
    return None
