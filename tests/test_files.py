"""Data that must survive a power cut reaches the drive itself, not just its cache."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from mlxchat import files as files_module
from mlxchat.errors import SessionError
from mlxchat.files import Lock, exclusive, force_to_disk, holder, write_atomically
from mlxchat.models.gguf import import_gguf
from mlxchat.store import tensor_file
from mlxchat.store.output_file import OutputFile
from tests.gguf_files import tiny_gguf

F_FULLFSYNC = 51


class Calls:
    """Records the calls that write, flush and rename files; `refusals` are those that fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.refusals: dict[str, int] = {}
        for name in ("pwrite", "fsync", "replace"):
            monkeypatch.setattr(os, name, partial(self._called, name, getattr(os, name)))

        def call(descriptor: int, command: int, argument: Any = 0) -> Any:
            if command == F_FULLFSYNC:
                return self._called("full", lambda: 0)
            return real(descriptor, command, argument)

        real = fcntl.fcntl
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", F_FULLFSYNC, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", call)

    def _called(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        self.names.append(name)
        if refusal := self.refusals.get(name):
            raise OSError(refusal, os.strerror(refusal))
        return real(*arguments)


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.mark.parametrize("refusal", [0, errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_mac_flushes_the_drives_cache_if_it_can(refusal: int, mac: Calls, tmp_path: Path) -> None:
    mac.refusals["full"] = refusal
    force_to_disk(os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT))
    assert mac.names == ["full", "fsync"][: 2 if refusal else 1]


def test_a_full_disk_surfaces_and_leaves_the_file_as_it_was(mac: Calls, tmp_path: Path) -> None:
    """A second `fsync` would report success: a lost write is reported only once."""
    path = tmp_path / "file"
    write_atomically(path, b"old")
    for refusal in (errno.ENOSPC, errno.EIO):
        mac.refusals["full"] = refusal
        with pytest.raises(OSError, match=os.strerror(refusal)):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def _output(directory: Path) -> None:
    with OutputFile.open(directory / "output") as output:
        output.write("text")
        output.sync()


def _tensors(directory: Path, *, full_sync: bool = True) -> None:
    ones = np.ones(3, np.float32)
    tensor_file.write(directory / "tensors", {"ones": ones}, {}, full_sync=full_sync)


def _conversion(directory: Path) -> None:
    source = tiny_gguf("llama").write(directory / "tiny.gguf")
    import_gguf(source, directory / "models", lambda _: None)


def _configuration(directory: Path) -> None:
    write_atomically(directory / "file", b"data")


@pytest.mark.parametrize("write", [_configuration, _output, _tensors, _conversion])
def test_what_lasts_is_flushed_after_its_last_write_and_before_it_gets_its_name(
    mac: Calls, tmp_path: Path, write: Callable[[Path], None]
) -> None:
    """With `fsync` alone, a power cut lost text that had been reported as saved."""
    write(tmp_path)
    assert "full" in mac.names
    for call, following in pairwise([*mac.names, "end"]):
        assert call != "pwrite" or following in ("pwrite", "full")
    mac.refusals = {"full": errno.EINVAL, "fsync": errno.EINVAL}
    (tmp_path / "again").mkdir()
    write(tmp_path / "again")


def test_data_that_can_be_recomputed_skips_the_full_sync(mac: Calls, tmp_path: Path) -> None:
    """A page takes as long to prefill as flushing a drive's cache, about 128 tokens' time."""
    _tensors(tmp_path, full_sync=False)
    assert mac.names == ["pwrite", "pwrite", "pwrite", "fsync", "replace", "fsync"]


# Locks


def test_one_process_runs_what_is_exclusive_and_waiting_is_announced(tmp_path: Path) -> None:
    said: SimpleQueue[str] = SimpleQueue()

    def second() -> None:
        with exclusive(tmp_path, lambda: said.put("waiting")):
            said.put("second")

    with exclusive(tmp_path, lambda: pytest.fail("nobody is there")):
        thread = threading.Thread(target=second)
        thread.start()
        assert said.get(timeout=10) == "waiting"
        said.put("first ends")
    thread.join(10)
    assert [said.get(timeout=10) for _ in range(2)] == ["first ends", "second"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("put_back", [True, False])
def test_a_lock_removed_while_it_is_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_back: bool
) -> None:
    """Otherwise two processes could hold two locks with the same name."""
    path = tmp_path / "lock"
    calls: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        if not calls:
            path.unlink()
            if put_back:
                path.write_text("")
        calls.append(descriptor)
        real(descriptor, operation)

    real = fcntl.flock
    monkeypatch.setattr(files_module.fcntl, "flock", flock)
    lock = Lock(path, "mine")
    assert len(calls) == 2
    lock.sign()
    assert path.read_text() == f"{os.getpid()}\n"
    assert holder(path) == os.getpid()
    for written, where in ((None, "in process"), ("x" * 100, "elsewhere: ")):
        path.write_text(written or path.read_text())
        with pytest.raises(SessionError, match=f"is open {where}"):
            Lock(path, "mine")
    assert holder(path) is None
    lock.release()
    lock.release()
    Lock(path, "mine").release()
