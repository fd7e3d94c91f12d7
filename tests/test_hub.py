"""Downloads from a hub that answers, stalls, refuses, disconnects or does not exist."""

import importlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import WeakFileLock

from mlxchat import doctor
from mlxchat.models import hub_cache
from mlxchat.models.describe import describe
from mlxchat.models.hub_cache import cached_snapshot, hub_cache_dir, repo_dir
from tests.fake_hub import FakeHub, FakeRepo, put_in_cache, tiny_model_files
from tests.in_process import run_in_process, run_quietly


@pytest.fixture(autouse=True)
def read_environment(temp_home: Path) -> Iterator[Callable[..., None]]:
    """Sets variables as the library finds them, which reads them when it is imported."""
    with pytest.MonkeyPatch.context() as patch:

        def read(**variables: str) -> None:
            for name, value in variables.items():
                patch.setenv(name, value)
            importlib.reload(constants)

        # It retries a few times, seconds apart, and asks daily which coding agents there are.
        patch.setattr(time, "sleep", lambda _, wait=time.sleep: wait(0.01))
        read(HF_HUB_DISABLE_TELEMETRY="1")
        yield read
    importlib.reload(constants)


@pytest.fixture
def fake_hub(read_environment: Callable[..., None]) -> Iterator[FakeHub]:
    """A hub with one model."""
    with FakeHub({"org/tiny": FakeRepo(tiny_model_files())}) as fake:
        read_environment(HF_ENDPOINT=fake.endpoint)
        yield fake


def pull_error() -> str:
    """The error line of a failing pull, without the program's name."""
    done = run_in_process("models", "pull", "org/tiny")
    assert (done.returncode, done.stdout) == (1, "")
    assert cached_snapshot("org/tiny") is None
    *_, last = done.stderr.splitlines()
    return last.removeprefix("mlxchat: error: ")


def test_a_pull_updates_a_model_with_what_it_needs_and_no_code(fake_hub: FakeHub):
    old = put_in_cache(hub_cache_dir(), "org/tiny", tiny_model_files(payload_bytes=32))
    fake_hub.cut_off_after_bytes["model.safetensors"] = 10
    assert run_in_process("models", "pull", "org/tiny").returncode == 1
    assert cached_snapshot("org/tiny") == old
    fake_hub.cut_off_after_bytes.clear()
    directory = Path(run_quietly("models", "pull", "org/tiny").rstrip("\n"))
    assert old != directory == cached_snapshot("org/tiny")
    wanted = set(tiny_model_files()) - {"README.md", "modeling.py"}
    assert {path.name for path in directory.iterdir()} == wanted


def test_an_interrupted_download_is_resumed_from_its_complete_files(fake_hub: FakeHub):
    sent = fake_hub.sent_names
    fake_hub.cut_off_after_bytes["model.safetensors"] = 10
    message = pull_error()
    assert message.startswith("the download of org/tiny failed: ")
    assert message.endswith("complete files are kept: run `mlxchat models pull org/tiny` to resume")
    listed = json.loads(run_in_process("models", "list", "--json").stdout.splitlines()[0])
    assert listed["name"] == "org/tiny"
    assert listed["problem"] == "partly downloaded: run `mlxchat models pull org/tiny` to resume"
    sent.clear()
    fake_hub.cut_off_after_bytes.clear()
    assert run_in_process("models", "pull", "org/tiny").returncode == 0
    assert cached_snapshot("org/tiny") is not None
    assert sent == ["model.safetensors"]


def test_a_pull_removes_what_a_killed_one_left_but_nothing_that_is_being_written(fake_hub: FakeHub):
    blobs, locks = repo_dir("org/tiny") / "blobs", hub_cache_dir() / ".locks" / "models--org--tiny"
    left, written = (blobs / f"{name * 40}.incomplete" for name in "ab")
    for directory in (blobs, locks):
        directory.mkdir(parents=True)
    left.touch()
    written.touch()
    with WeakFileLock(locks / f"{'b' * 40}.lock"):
        assert run_in_process("models", "pull", "org/tiny").returncode == 0
    assert list(blobs.glob("*.incomplete")) == [written]


TROUBLE: dict[str, dict[str, Any]] = {
    "{hub} has no model org/tiny: check the spelling, or log in ": {"repos": {}},
    "org/tiny is gated: ask for access at {hub}/org/tiny, then log in with ": {
        "repos": {"org/tiny": FakeRepo(tiny_model_files(), is_gated=True)}
    },
    "{hub} answered 503 for org/tiny: try again later": {"always_answer": (503, b"busy")},
    "{hub} does not answer like a hub: check for a network login page": {
        "always_answer": (200, b"<html>Welcome to the hotel</html>")
    },
    "org/tiny has no config.json with model*.safetensors: look for ": {
        "repos": {"org/tiny": FakeRepo({"config.json": b"{}", "model.gguf": b"GGUF"})}
    },
}


@pytest.mark.parametrize("message", TROUBLE)
def test_what_the_hub_refuses_is_reported_in_one_line_and_nothing_is_downloaded(
    message: str, fake_hub: FakeHub
):
    vars(fake_hub).update(TROUBLE[message])
    assert pull_error().startswith(message.format(hub=fake_hub.endpoint))
    assert "model.safetensors" not in fake_hub.sent_names


def test_an_unreachable_hub_is_an_error_that_says_what_to_do(read_environment: Callable[..., None]):
    reasons = {
        "http://no-such-host.invalid": "its name cannot be resolved",
        "http://127.0.0.1:9": "Connection refused",
    }
    for endpoint, reason in reasons.items():
        read_environment(HF_ENDPOINT=endpoint.replace("//", "//me:secret@"))
        assert pull_error().startswith(f"cannot reach {endpoint}: {reason}; check the ")
    # The catalogue's facts are shown.
    done = run_in_process("models", "info", "qwen3-4b")
    assert done.stderr.startswith("mlxchat: cannot reach http://127.0.0.1:9: ")
    assert "mlx-community/Qwen3-4B-Instruct-2507-4bit" in done.stdout
    (finding,) = doctor.hub()
    assert finding.verdict is doctor.Verdict.WARNING


def test_info_describes_a_model_before_any_download(fake_hub: FakeHub, tiny_model: Path):
    """It looked at the disk only, and said to download a model to learn whether it fits."""
    files = {path.name: path.read_bytes() for path in tiny_model.iterdir()}
    fake_hub.repos["org/tiny"] = FakeRepo(files)
    facts = json.loads(run_in_process("models", "info", "org/tiny", "--json").stdout)
    expected = asdict(describe("org/tiny", tiny_model))
    # The hub reports the size of the files, headers included.
    expected["memory_needed_bytes"] = pytest.approx(expected["memory_needed_bytes"], rel=0.01)
    assert facts == expected | {"here": "no", "directory": None}
    assert not repo_dir("org/tiny").exists()


def test_a_model_larger_than_the_disk_is_refused_before_downloading(fake_hub: FakeHub):
    fake_hub.repos["org/tiny"].claimed_bytes["model.safetensors"] = 10**18
    message = pull_error()
    assert message.startswith(f"org/tiny needs 1000000 TB, but {hub_cache_dir()} has ")
    assert message.endswith(" free: make space, or set HF_HOME to a larger disk")
    assert not hub_cache_dir().exists()
    assert fake_hub.sent_names == []


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HF_HOME": "/a/$HOME/b", "HF_HUB_OFFLINE": "1"},
        {"HF_HUB_CACHE": "~/c", "HF_HOME": "/d", "HF_HUB_OFFLINE": "yes"},
        {"XDG_CACHE_HOME": "/f", "TRANSFORMERS_OFFLINE": "on"},
    ],
)
def test_we_read_the_environment_like_the_library(
    variables: dict[str, str],
    read_environment: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("HF_HOME")
    read_environment(**variables)
    assert Path(constants.HF_HUB_CACHE) == hub_cache_dir()
    assert hub_cache.offline_by_environment() == constants.HF_HUB_OFFLINE
