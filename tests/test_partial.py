"""An interrupted download of a large file continues where it was interrupted."""

import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from mlxchat.models.hub_cache import cached_snapshot, repo_dir
from tests.conftest import RunMlxchat
from tests.fake_hub import FakeHub, FakeRepo, tiny_model_files

NAME = "model.safetensors"
PULL = (sys.executable, "-m", "mlxchat", "models", "pull", "org/tiny")
# The library writes 10 MiB at a time.
CHUNK_BYTES = 10 * 1024 * 1024


def files(payload_bytes: int = 25_000_000, fill: int = 1) -> dict[str, bytes]:
    found = tiny_model_files(payload_bytes)
    data = found[NAME]
    return {**found, NAME: data[:-payload_bytes] + bytes([fill]) * payload_bytes}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    with FakeHub({"org/tiny": FakeRepo(files(), large=(NAME,))}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


def partial(hub: FakeHub) -> Path:
    return repo_dir("org/tiny") / "blobs" / f"{hub.repos['org/tiny'].etag(NAME)}.incomplete"


def leave(hub: FakeHub, data: bytes) -> Path:
    """What an earlier download of the file left."""
    path = partial(hub)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def size_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)


def check_result(hub: FakeHub) -> None:
    """The downloaded file is the one on the hub, and nothing else is left."""
    snapshot = cached_snapshot("org/tiny")
    assert snapshot is not None
    data = hub.repos["org/tiny"].files[NAME]
    assert (snapshot / NAME).read_bytes() == data
    assert (snapshot / NAME).resolve().name == hashlib.sha256(data).hexdigest()
    assert list(repo_dir("org/tiny").glob("blobs/*.incomplete")) == []


def test_a_killed_download_asks_only_for_the_rest(hub: FakeHub, run_program: RunMlxchat) -> None:
    hub.seconds_per_chunk = 0.002
    process = subprocess.Popen(PULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: size_bytes(partial(hub)) >= CHUNK_BYTES)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept_bytes = size_bytes(partial(hub))
    assert kept_bytes in (CHUNK_BYTES, 2 * CHUNK_BYTES)
    shown = run_program("models", "list").stdout
    assert shown.startswith("org/tiny\t")
    hub.seconds_per_chunk = 0
    hub.sent_names.clear()
    done = run_program("models", "pull", "org/tiny")
    assert (done.returncode, done.stderr) == (0, "")
    assert hub.ranges == [(NAME, kept_bytes)]
    assert hub.sent_names == [NAME]
    check_result(hub)


def test_ctrl_c_keeps_what_has_arrived(hub: FakeHub, run_program: RunMlxchat) -> None:
    hub.seconds_per_chunk = 0.002
    process = subprocess.Popen(PULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: size_bytes(partial(hub)) >= CHUNK_BYTES)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert size_bytes(partial(hub)) >= CHUNK_BYTES
    hub.seconds_per_chunk = 0
    assert run_program("models", "pull", "org/tiny").returncode == 0
    assert hub.ranges[0][1] >= CHUNK_BYTES
    check_result(hub)


def test_a_broken_connection_keeps_what_has_arrived(hub: FakeHub, run_program: RunMlxchat) -> None:
    hub.cut_off_after_bytes[NAME] = 12_000_000
    process = subprocess.Popen(PULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: size_bytes(partial(hub)) >= CHUNK_BYTES)
    hub.cut_off_after_bytes[NAME] = 0
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.endswith(
        "; what has arrived is kept: run `mlxchat models pull org/tiny` to resume\n"
    )
    assert size_bytes(partial(hub)) == CHUNK_BYTES
    hub.cut_off_after_bytes.clear()
    hub.ranges.clear()
    assert run_program("models", "pull", "org/tiny").returncode == 0
    assert hub.ranges == [(NAME, CHUNK_BYTES)]
    check_result(hub)


def test_a_file_that_changed_meanwhile_is_fetched_whole(
    hub: FakeHub, run_program: RunMlxchat
) -> None:
    leave(hub, files()[NAME][:9_000_000])
    hub.repos["org/tiny"].files = files(fill=2)
    assert run_program("models", "pull", "org/tiny").returncode == 0
    assert hub.ranges == []
    check_result(hub)


@pytest.mark.parametrize("beginning", [b"X" * 9_000_000, b"X" * 25_000_200])
def test_a_damaged_beginning_is_noticed(
    beginning: bytes, hub: FakeHub, run_program: RunMlxchat
) -> None:
    """A power cut can leave anything in a file."""
    data = hub.repos["org/tiny"].files[NAME]
    leave(hub, beginning[: len(data)])
    assert run_program("models", "pull", "org/tiny").returncode == 0
    assert hub.sent_names.count(NAME) == (2 if len(beginning) < len(data) else 1)
    check_result(hub)


def test_a_beginning_larger_than_the_file_is_replaced(
    hub: FakeHub, run_program: RunMlxchat
) -> None:
    leave(hub, b"X" * 26_000_000)
    assert run_program("models", "pull", "org/tiny").returncode == 0
    check_result(hub)


def test_all_but_the_name_of_a_complete_file_costs_no_request(
    hub: FakeHub, run_program: RunMlxchat
) -> None:
    leave(hub, hub.repos["org/tiny"].files[NAME])
    assert run_program("models", "pull", "org/tiny").returncode == 0
    assert NAME not in hub.sent_names
    check_result(hub)


def test_the_rest_comes_from_the_server_that_the_hub_redirects_to(
    hub: FakeHub, run_program: RunMlxchat
) -> None:
    leave(hub, hub.repos["org/tiny"].files[NAME][:9_000_000])
    hub.redirects = True
    assert run_program("models", "pull", "org/tiny").returncode == 0
    assert hub.ranges == [(NAME, 9_000_000)]
    assert f"GET /cdn/org/tiny/{NAME}" in hub.requests
    check_result(hub)


def test_a_hub_that_sends_no_parts_sends_the_whole_file(
    hub: FakeHub, run_program: RunMlxchat
) -> None:
    leave(hub, hub.repos["org/tiny"].files[NAME][:9_000_000])
    hub.sends_ranges = False
    assert run_program("models", "pull", "org/tiny").returncode == 0
    check_result(hub)


def test_a_terminal_shows_how_much_is_left(hub: FakeHub) -> None:
    leave(hub, hub.repos["org/tiny"].files[NAME][:20_000_000])
    child = pexpect.spawn(PULL[0], list(PULL[1:]), encoding="utf-8", dimensions=(24, 100))
    child.expect(pexpect.EOF, timeout=60)
    assert str(child.before).startswith(
        "mlxchat: resuming the download of org/tiny, 5.00 MB left\r\n"
    )


def test_two_processes_fetch_a_file_once(hub: FakeHub) -> None:
    hub.seconds_per_chunk = 0.001
    both = [subprocess.Popen(PULL, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=100) for process in both] == [0, 0]
    assert hub.sent_names.count(NAME) == 1
    check_result(hub)
