"""A disk on which chosen system calls fail, whatever code makes them. It never syncs: that takes
long, and only a power cut would show the difference."""

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

KINDS = ("open", "write", "sync", "replace", "truncate", "unlink", "close")
REPLACED = ("open", "pwrite", "ftruncate", "unlink", "replace", "close")


class FailingDisk:
    """Records in `calls` calls that change files in `directory`, or open and close them for it.

    The calls with the numbers in `failing` raise `error`; a failing write first writes half. Other
    writes take at most `max_bytes`. Syncing a directory is not counted, since it may fail.
    """

    def __init__(self, directory: Path, kinds: Collection[str] = KINDS) -> None:
        self.calls: list[str] = []
        self.failing: Collection[int] = ()
        self.error = errno.ENOSPC
        self.max_bytes = 1 << 30
        self._directory = directory
        self._kinds = kinds
        self._open: set[int] = set()

    @contextmanager
    def used(self) -> Iterator["FailingDisk"]:
        with pytest.MonkeyPatch.context() as patch:
            self._os = {name: getattr(os, name) for name in REPLACED}
            patch.setattr(os, "open", self._opens)
            patch.setattr(os, "pwrite", self._writes)
            patch.setattr(os, "fsync", self._forces)
            patch.setattr(os, "ftruncate", self._truncates)
            patch.setattr(os, "unlink", self._unlinks)
            patch.setattr(os, "replace", self._replaces)
            patch.setattr(os, "close", self._closes)
            yield self

    def _call(self, kind: str, before: Callable[[], object] | None = None) -> None:
        if kind not in self._kinds:
            return
        self.calls.append(kind)
        if len(self.calls) - 1 in self.failing:
            if before is not None:
                before()
            raise OSError(self.error, os.strerror(self.error))

    def _is_ours(self, path: Any) -> bool:
        return isinstance(path, str | Path) and self._directory in Path(path).parents

    def _opens(self, path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if not self._is_ours(path) or not flags & (os.O_WRONLY | os.O_RDWR):
            return self._os["open"](path, flags, *rest, **more)
        self._call("open")
        descriptor = self._os["open"](path, flags, *rest, **more)
        self._open.add(descriptor)
        return descriptor

    def _writes(self, descriptor: int, data: memoryview, offset: int) -> int:
        pwrite = self._os["pwrite"]
        self._call("write", lambda: pwrite(descriptor, data[: len(data) // 2], offset))
        return pwrite(descriptor, data[: self.max_bytes], offset)

    def _forces(self, descriptor: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._call("sync")

    def _truncates(self, descriptor: int, length: int) -> None:
        self._call("truncate")
        self._os["ftruncate"](descriptor, length)

    def _unlinks(self, path: Any, **more: Any) -> None:
        if self._is_ours(path):
            self._call("unlink")
        self._os["unlink"](path, **more)

    def _replaces(self, path: Any, target: Any) -> None:
        # A thread of an earlier test may still write elsewhere.
        if self._is_ours(target):
            self._call("replace")
        self._os["replace"](path, target)

    def _closes(self, descriptor: int) -> None:
        # The system closes a file even if it reports an error.
        self._os["close"](descriptor)
        if descriptor in self._open:
            self._open.remove(descriptor)
            self._call("close")
