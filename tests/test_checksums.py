"""`models verify` finds every damaged file, and `models pull --repair` replaces it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxchat.models.hub_cache import cached_snapshot, hub_cache_dir, repo_dir
from tests.conftest import RunMlxchat
from tests.fake_hub import FakeHub, FakeRepo, put_in_cache, tiny_model_files

REPAIR = "run `mlxchat models pull --repair org/tiny`"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    repo = FakeRepo(tiny_model_files(payload_bytes=3000), large=("model.safetensors",))
    with FakeHub({"org/tiny": repo}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


@pytest.fixture
def downloaded(hub: FakeHub, run_program: RunMlxchat) -> Path:
    """The snapshot of a downloaded model."""
    assert run_program("models", "pull", "org/tiny").returncode == 0
    hub.requests.clear()
    snapshot = cached_snapshot("org/tiny")
    assert snapshot is not None
    return snapshot


def test_a_sound_model_is_confirmed_without_the_network(
    hub: FakeHub, downloaded: Path, run_mlxchat: RunMlxchat
) -> None:
    done = run_mlxchat("models", "verify", "org/tiny")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "org/tiny: 5 files as on the Hub, 3.19 kB\n"
    assert hub.requests == []


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_every_damage_is_found_and_repaired(
    name: str, hub: FakeHub, downloaded: Path, run_mlxchat: RunMlxchat, run_program: RunMlxchat
) -> None:
    path = downloaded / name
    data = path.read_bytes()
    damages = {
        "altered": lambda: path.write_bytes(b"X" + data[1:]),
        "truncated: ": lambda: path.write_bytes(data[:-5]),
        "missing": path.resolve().unlink,
    }
    for problem, damage in damages.items():
        damage()
        done = run_mlxchat("models", "verify", "org/tiny")
        assert done.returncode == 1
        first, last = done.stderr.splitlines()
        assert first.startswith(f"mlxchat: {name}: {problem}")
        assert last == f"mlxchat: error: org/tiny: 1 damaged file; {REPAIR}"
        hub.sent_names.clear()
        assert run_program("models", "pull", "--repair", "org/tiny").returncode == 0
        assert hub.sent_names == [name]
        assert path.read_bytes() == data
    assert run_mlxchat("models", "verify", "org/tiny").returncode == 0


def test_a_larger_file_is_altered(downloaded: Path, run_mlxchat: RunMlxchat) -> None:
    with (downloaded / "model.safetensors").open("ab") as file:
        file.write(b"more")
    assert ": altered\n" in run_mlxchat("models", "verify", "org/tiny").stderr


def test_json_lists_all_files(downloaded: Path, run_mlxchat: RunMlxchat) -> None:
    (downloaded / "tokenizer.json").unlink()
    done = run_mlxchat("models", "verify", "--json", "org/tiny")
    files = {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert files["tokenizer.json"] == {
        "name": "tokenizer.json",
        "size_bytes": 0,
        "problem": "missing",
        "is_damaged": True,
    }
    assert files["config.json"]["problem"] is None
    assert done.returncode == 1


def test_a_cache_without_a_list_of_files_has_checksums_in_its_names(
    run_mlxchat: RunMlxchat,
) -> None:
    snapshot = put_in_cache(hub_cache_dir(), "org/tiny", tiny_model_files())
    assert run_mlxchat("models", "verify", "org/tiny").returncode == 0
    (snapshot / "config.json").write_bytes(b"{}")
    assert "config.json: altered" in run_mlxchat("models", "verify", "org/tiny").stderr


def test_a_cache_without_links_is_checked_by_its_list(
    downloaded: Path, run_mlxchat: RunMlxchat
) -> None:
    path = downloaded / "config.json"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    assert run_mlxchat("models", "verify", "org/tiny").returncode == 0
    path.write_bytes(data[:-1] + b"]")
    assert run_mlxchat("models", "verify", "org/tiny").returncode == 1


def test_a_file_without_a_checksum_is_named(downloaded: Path, run_mlxchat: RunMlxchat) -> None:
    (downloaded / "notes.json").write_text("{}")
    done = run_mlxchat("models", "verify", "org/tiny")
    assert done.returncode == 0
    assert done.stderr == "mlxchat: notes.json: not checked: it has no checksum\n"


def test_repairing_deletes_nothing_outside_the_cache(
    downloaded: Path, tmp_path: Path, run_program: RunMlxchat
) -> None:
    own = tmp_path / "own.json"
    own.write_text("mine")
    (downloaded / "config.json").unlink()
    (downloaded / "config.json").symlink_to(own)
    tree = next(repo_dir("org/tiny").glob("trees/*.json"))
    listed = json.loads(tree.read_text())
    listed["files"]["../../../own.json"] = {"size": 9, "blob_id": "0" * 40}
    tree.write_text(json.dumps(listed))
    outside = downloaded / "../../../own.json"
    outside.write_text("theirs")
    run_program("models", "pull", "--repair", "org/tiny")
    assert (own.read_text(), outside.read_text()) == ("mine", "theirs")
    assert json.loads((downloaded / "config.json").read_text())


def test_a_model_that_is_not_from_the_hub_is_refused(
    tiny_model: Path, run_mlxchat: RunMlxchat
) -> None:
    done = run_mlxchat("models", "verify", str(tiny_model))
    assert done.returncode == 2
    assert "is not from the Hub, which has no checksums for it" in done.stderr
    missing = run_mlxchat("models", "verify", "org/none")
    assert missing.returncode == 1
    assert "run `mlxchat models pull org/none`" in missing.stderr
