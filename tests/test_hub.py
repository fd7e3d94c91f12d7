"""Downloads from a hub that answers, stalls, refuses, disconnects or does not exist.

The hub's library reads its variables when it is imported, so each scene is a separate process.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pexpect
import pytest

from mlxchat.models.describe import describe
from mlxchat.models.hub_cache import cached_snapshot, hub_cache_dir, repo_dir
from tests.conftest import RunMlxchat
from tests.fake_hub import FakeHub, FakeRepo, put_in_cache, tiny_model_files

PULL = [sys.executable, "-m", "mlxchat", "models", "pull", "org/tiny"]

RESOLVE = """
import sys
from mlxchat.models.resolve import resolve_model
resolved = resolve_model(
    sys.argv[1], offline=False, ask=None, notify=print, show_progress=False
)
print(resolved.directory)
print("huggingface_hub" in sys.modules)
"""

CACHE_DIRECTORIES = """
import importlib, json, os, sys
from pathlib import Path
from huggingface_hub import constants
from mlxchat.models.hub_cache import hub_cache_dir, offline_by_environment
for variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    importlib.reload(constants)
    assert Path(constants.HF_HUB_CACHE) == hub_cache_dir(), variables
    assert constants.HF_HUB_OFFLINE == offline_by_environment(), variables
    for name in variables:
        del os.environ[name]
"""


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with one model, used by processes started from the test."""
    # Otherwise the library asks the hub once a day which coding agents there are.
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    with FakeHub({"org/tiny": FakeRepo(tiny_model_files())}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


def pull_error(run_program: RunMlxchat) -> str:
    """The error line of a failing pull, without the program's name."""
    done = run_program("models", "pull", "org/tiny")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("mlxchat: error: ").rstrip("\n")


def pull_slowly(fake_hub: FakeHub) -> "subprocess.Popen[bytes]":
    fake_hub.repos["org/tiny"] = FakeRepo(tiny_model_files(payload_bytes=5_000_000))
    fake_hub.seconds_per_chunk = 0.1
    return subprocess.Popen(PULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)


def test_a_pull_updates_a_model_with_what_it_needs_and_no_code(
    fake_hub: FakeHub, run_program: RunMlxchat
):
    old = put_in_cache(hub_cache_dir(), "org/tiny", tiny_model_files(payload_bytes=32))
    done = run_program("models", "pull", "org/tiny")
    directory = Path(done.stdout.rstrip("\n"))
    assert (done.returncode, done.stderr) == (0, "")
    assert old != directory == cached_snapshot("org/tiny")
    wanted = set(tiny_model_files()) - {"README.md", "modeling.py"}
    assert {path.name for path in directory.iterdir()} == wanted


def test_a_cached_model_costs_no_request_and_no_import_of_the_library(fake_hub: FakeHub):
    snapshot = put_in_cache(hub_cache_dir(), "org/tiny", tiny_model_files())
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE, "org/tiny"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{snapshot}\nFalse\n"
    assert fake_hub.requests == []


def test_progress_is_drawn_on_a_terminal_and_erased_at_the_end(fake_hub: FakeHub):
    fake_hub.repos["org/tiny"] = FakeRepo(tiny_model_files(payload_bytes=1_000_000))
    program, *arguments = PULL
    child = pexpect.spawn(program, arguments, encoding="utf-8", dimensions=(24, 100))
    child.expect(pexpect.EOF, timeout=100)
    shown = str(child.before)
    assert shown.startswith("mlxchat: downloading org/tiny, 1.00 MB\r\n")
    assert "org/tiny:" in shown
    last_line = shown.rstrip().split("\r")[-1]
    assert last_line == str(cached_snapshot("org/tiny"))


def test_ctrl_c_ends_a_download_immediately_and_the_next_one_resumes_it(
    fake_hub: FakeHub, run_program: RunMlxchat
):
    """The library alone would wait for files in progress: minutes on a slow line."""
    process, sent = pull_slowly(fake_hub), fake_hub.sent_names
    here = repo_dir("org/tiny")
    wait_until(lambda: len(list(here.glob("snapshots/*/*"))) == 4 and "model.safetensors" in sent)
    process.send_signal(signal.SIGINT)
    interrupted_s = time.monotonic()
    out, err = process.communicate(timeout=100)
    # The rest takes half a minute.
    assert time.monotonic() - interrupted_s < 15
    assert (process.returncode, out, err) == (-signal.SIGINT, b"", b"")
    assert cached_snapshot("org/tiny") is None

    listed = json.loads(run_program("models", "list", "--json").stdout.splitlines()[0])
    assert listed["name"] == "org/tiny"
    assert listed["problem"] == "partly downloaded: run `mlxchat models pull org/tiny` to resume"

    sent.clear()
    fake_hub.seconds_per_chunk = 0
    assert run_program("models", "pull", "org/tiny").returncode == 0
    assert cached_snapshot("org/tiny") is not None
    assert leftovers("org/tiny") == []
    assert sent == ["model.safetensors"]


def test_a_pull_removes_what_a_killed_one_left_but_nothing_that_is_being_written(
    fake_hub: FakeHub, run_program: RunMlxchat
):
    process = pull_slowly(fake_hub)
    wait_until(lambda: leftovers("org/tiny") != [])
    process.kill()
    process.communicate()
    assert leftovers("org/tiny") != []

    fake_hub.seconds_per_chunk = 0.005
    fake_hub.sent_names.clear()
    both = [subprocess.Popen(PULL, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=100) for process in both] == [0, 0]
    assert fake_hub.sent_names.count("model.safetensors") == 1
    assert leftovers("org/tiny") == []


def leftovers(repo_id: str) -> list[Path]:
    return list(repo_dir(repo_id).glob("blobs/*.incomplete"))


def test_a_connection_that_keeps_breaking_is_reported_and_leaves_no_complete_snapshot(
    fake_hub: FakeHub,
):
    """The library retries a few times, a second apart, before it gives up."""
    fake_hub.cut_off_after_bytes["model.safetensors"] = 10
    impatient = "import time; time.sleep = lambda s, sleep=time.sleep: sleep(min(s, 0.05))\n"
    program = f"{impatient}from mlxchat.cli import main; main()"
    command = [sys.executable, "-c", program, "models", "pull", "org/tiny"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("mlxchat: error: the download of org/tiny failed: ")
    assert "complete files are kept: run `mlxchat models pull org/tiny` to resume" in done.stderr
    assert cached_snapshot("org/tiny") is None


TROUBLE: dict[str, Callable[[FakeHub], object]] = {
    "{hub} has no model org/tiny: check the spelling, or log in ": lambda hub: hub.repos.clear(),
    "org/tiny is gated: ask for access at {hub}/org/tiny, then log in with ": lambda hub: setattr(
        hub.repos["org/tiny"], "gated_status", 403
    ),
    "{hub} answered 503 for org/tiny: try again later": lambda hub: setattr(
        hub, "always_answer", (503, b"busy")
    ),
    "{hub} does not answer like a hub: check for a network login page": lambda hub: setattr(
        hub, "always_answer", (200, b"<html>Welcome to the hotel</html>")
    ),
    "org/tiny has no config.json with model*.safetensors: look for ": lambda hub: hub.repos.update(
        {"org/tiny": FakeRepo({"config.json": b"{}", "model.gguf": b"GGUF"})}
    ),
}


@pytest.mark.parametrize("message", TROUBLE)
def test_what_the_hub_refuses_is_reported_in_one_line_and_nothing_is_downloaded(
    message: str, fake_hub: FakeHub, run_program: RunMlxchat
):
    TROUBLE[message](fake_hub)
    assert pull_error(run_program).startswith(message.format(hub=fake_hub.endpoint))
    assert cached_snapshot("org/tiny") is None
    assert "model.safetensors" not in fake_hub.sent_names


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("http://127.0.0.1:9", "Connection refused"),
        ("http://no-such-host.invalid", "its name cannot be resolved"),
    ],
)
def test_an_unreachable_hub_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, run_program: RunMlxchat, endpoint: str, reason: str
):
    """A first run offline showed "[Errno -2] Name or service not known"."""
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert pull_error(run_program).startswith(f"cannot reach {endpoint}: {reason}; check the ")


def test_info_describes_a_model_before_any_download(
    fake_hub: FakeHub, tiny_model: Path, run_program: RunMlxchat
):
    """It looked at the disk only, and said to download a model to learn whether it fits."""
    files = {path.name: path.read_bytes() for path in tiny_model.iterdir()}
    fake_hub.repos["org/tiny"] = FakeRepo(files)
    facts = json.loads(run_program("models", "info", "org/tiny", "--json").stdout)
    expected = asdict(describe("org/tiny", tiny_model))
    # The hub reports the size of the files, headers included.
    expected["memory_needed_bytes"] = pytest.approx(expected["memory_needed_bytes"], rel=0.01)
    assert facts == expected | {"here": "no", "directory": None}
    assert not repo_dir("org/tiny").exists()


def test_info_falls_back_on_the_catalogue(monkeypatch: pytest.MonkeyPatch, run_program: RunMlxchat):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = run_program("models", "info", "qwen3-4b")
    assert done.stderr.startswith("mlxchat: cannot reach http://127.0.0.1:9: ")
    assert "mlx-community/Qwen3-4B-Instruct-2507-4bit" in done.stdout


def test_a_model_larger_than_the_disk_is_refused_before_downloading(
    fake_hub: FakeHub, run_program: RunMlxchat
):
    fake_hub.repos["org/tiny"].claimed_bytes["model.safetensors"] = 10**18
    message = pull_error(run_program)
    assert message.startswith(f"org/tiny needs 1000000 TB, but {hub_cache_dir()} has ")
    assert message.endswith(" free: make space, or set HF_HOME to a larger disk")
    assert not hub_cache_dir().exists()
    assert fake_hub.sent_names == []


def test_we_read_the_environment_like_the_library(temporary_home: Path):
    variables = [
        {},
        {"HF_HOME": "/a/$HOME/b"},
        {"HF_HOME": "~/b"},
        {"HF_HUB_CACHE": "~/c", "HF_HOME": "/d"},
        {"XDG_CACHE_HOME": "/f"},
        {"HF_HUB_OFFLINE": "1"},
        {"HF_HUB_OFFLINE": "yes"},
        {"TRANSFORMERS_OFFLINE": "on"},
    ]
    own = {"HOME": str(temporary_home), "PATH": os.environ["PATH"]}
    subprocess.run(
        [sys.executable, "-c", CACHE_DIRECTORIES, json.dumps(variables)], env=own, check=True
    )
