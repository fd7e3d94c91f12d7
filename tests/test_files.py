"""Data that must survive a power cut reaches the drive itself, not just its cache."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
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
    """Records which sync calls were made; `refusal` is what F_FULLFSYNC raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.refusal: int | None = None
        self._fsync, self._fcntl = os.fsync, fcntl.fcntl
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(fcntl, "fcntl", self.fcntl)

    def fsync(self, descriptor: int) -> None:
        self.names.append("fsync")
        self._fsync(descriptor)

    def fcntl(self, descriptor: int, command: int, argument: Any = 0) -> Any:
        if command != F_FULLFSYNC:
            return self._fcntl(descriptor, command, argument)
        self.names.append("full")
        if self.refusal is not None:
            raise OSError(self.refusal, os.strerror(self.refusal))
        return 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> Calls:
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", F_FULLFSYNC, raising=False)
    return calls


@pytest.fixture
def descriptor(tmp_path: Path) -> int:
    return os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)


def test_a_file_system_without_sync_is_not_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On such a file system, turns and texts were saved but a configuration was refused."""

    def refuse(_: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuse)
    for write in DURABLE.values():
        write(tmp_path)
    assert (tmp_path / "file").read_bytes() == b"data"


@pytest.mark.parametrize("refusal", [None, errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_mac_flushes_the_drives_cache_if_the_file_system_can(
    refusal: int | None, mac: Calls, descriptor: int
) -> None:
    mac.refusal = refusal
    force_to_disk(descriptor)
    assert mac.names == (["full"] if refusal is None else ["full", "fsync"])


def test_other_systems_use_fsync(calls: Calls, descriptor: int) -> None:
    force_to_disk(descriptor)
    assert calls.names == ["fsync"]


def test_a_full_disk_surfaces_and_leaves_the_file_as_it_was(mac: Calls, tmp_path: Path) -> None:
    """A second `fsync` would report success: a lost write is reported only once."""
    path = tmp_path / "file"
    write_atomically(path, b"old")
    for mac.refusal in (errno.ENOSPC, errno.EIO):
        with pytest.raises(OSError, match=os.strerror(mac.refusal)):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def _output(directory: Path) -> None:
    with OutputFile.open(directory / "output") as output:
        output.write("text")
        output.sync()


def _snapshot(directory: Path) -> None:
    ones = np.ones(3, np.float32)
    tensor_file.write(directory / "tensors", {"ones": ones}, {})


def _conversion(directory: Path) -> None:
    source = tiny_gguf("llama").write(directory / "tiny.gguf")
    import_gguf(source, directory / "models", lambda _: None)


DURABLE: dict[str, Callable[[Path], None]] = {
    "a configuration": lambda directory: write_atomically(directory / "file", b"data"),
    "a long run's text": _output,
    "a snapshot": _snapshot,
    "a converted model": _conversion,
}


@pytest.mark.parametrize("write", DURABLE.values(), ids=DURABLE.keys())
def test_every_durable_write_flushes_the_drives_cache(
    mac: Calls, tmp_path: Path, write: Callable[[Path], None]
) -> None:
    """With `fsync` alone, a power cut lost text that had been reported as saved."""
    write(tmp_path)
    assert "full" in mac.names


def test_data_that_can_be_recomputed_skips_the_full_sync(mac: Calls, tmp_path: Path) -> None:
    """A page takes as long to prefill as flushing a drive's cache, about 128 tokens' time."""
    ones = np.ones(3, np.float32)
    tensor_file.write(tmp_path / "page", {"ones": ones}, {}, full_sync=False)
    assert "full" not in mac.names


def test_waiting_for_the_lock_is_announced_first(tmp_path: Path) -> None:
    asked, entered = threading.Event(), threading.Event()

    def second() -> None:
        with exclusive(tmp_path, asked.set):
            entered.set()

    with exclusive(tmp_path, lambda: pytest.fail("nobody is there")):
        thread = threading.Thread(target=second)
        thread.start()
        assert asked.wait(10)
        assert not entered.is_set()
    thread.join(10)
    assert entered.is_set()
    assert list(tmp_path.iterdir()) == []


# Locks


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
    with pytest.raises(SessionError, match="is open in process"):
        Lock(path, "mine")
    lock.release()
    lock.release()
    Lock(path, "mine").release()


@pytest.mark.parametrize("content", ["", "x" * 100])
def test_a_lock_without_a_process_id_still_locks(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lock"
    lock = Lock(path, "mine")
    path.write_text(content)
    assert holder(path) is None
    with pytest.raises(SessionError, match="is open in another process: "):
        Lock(path, "mine")
    lock.release()
