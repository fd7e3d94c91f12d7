"""`models du` shows what models take, `models prune` deletes those that nobody uses."""

import json
import os
import sys
import time
from pathlib import Path

import mlx.core as mx
import pexpect
import pytest

from mlxchat import paths
from mlxchat.models.adapters.find import FoundAdapter
from mlxchat.models.adapters.read import read_adapter
from mlxchat.models.disk_use import DAY_S
from mlxchat.models.hub_cache import hub_cache_dir, repo_dir
from mlxchat.models.last_use import forget_use, last_use_s, record_use
from mlxchat.models.load import load
from tests.conftest import RunMlxchat
from tests.fake_hub import put_in_cache, tiny_model_files

OLD_COMMIT = "b" * 40


def age(repo_id: str, days: float) -> None:
    """As if everything had been downloaded and read that number of days ago."""
    then = time.time() - days * DAY_S
    for path in repo_dir(repo_id).rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


@pytest.fixture
def models() -> dict[str, Path]:
    """One used today, one 100 days ago."""
    files = tiny_model_files(payload_bytes=3000)
    snapshots = {
        each: put_in_cache(hub_cache_dir(), each, files) for each in ("org/new", "org/old")
    }
    age("org/old", 100)
    return snapshots


def add_old_revision(repo_id: str) -> Path:
    """It shares all its files but the configuration with the other one."""
    current = repo_dir(repo_id) / "snapshots" / ("a" * 40)
    old = current.with_name(OLD_COMMIT)
    old.mkdir()
    for path in current.iterdir():
        (old / path.name).symlink_to(path.readlink())
    blob = repo_dir(repo_id) / "blobs" / ("c" * 40)
    blob.write_bytes((current / "config.json").read_bytes() + b" " * 70)
    (old / "config.json").unlink()
    (old / "config.json").symlink_to(Path("..", "..", "blobs", blob.name))
    return old


def test_du_shows_size_and_last_use(models: dict[str, Path], run_mlxchat: RunMlxchat) -> None:
    add_old_revision("org/old")
    rows = [line.split("\t") for line in run_mlxchat("models", "du").stdout.splitlines()]
    assert [row[:2] for row in rows] == [
        ["org/old", "aaaaaaaa"],
        ["org/old", "bbbbbbbb (old)"],
        ["org/new", "aaaaaaaa"],
    ]
    used = [json.loads(line) for line in run_mlxchat("models", "du", "--json").stdout.splitlines()]
    assert time.time() - used[0]["used"] > 99 * DAY_S
    assert time.time() - used[2]["used"] < DAY_S
    assert used[1]["size_bytes"] == used[0]["size_bytes"] + 70


def test_a_loaded_model_counts_as_used(tiny_model: Path, run_mlxchat: RunMlxchat) -> None:
    """Disks are often mounted so that reading leaves no trace."""
    files = {path.name: path.read_bytes() for path in tiny_model.iterdir()}
    snapshot = put_in_cache(hub_cache_dir(), "org/tiny", files)
    load("org/tiny")
    age("org/tiny", 100)
    assert time.time() - last_use_s(snapshot) < DAY_S
    assert run_mlxchat("models", "prune", "--yes").stdout == ""
    assert snapshot.is_dir()


def test_reading_the_tokenizer_counts_as_use_but_listing_does_not(
    models: dict[str, Path], run_mlxchat: RunMlxchat
) -> None:
    now = time.time()
    tokenizer = models["org/old"] / "tokenizer.json"
    for name in ("config.json", "model.safetensors"):
        os.utime(models["org/old"] / name, (now, now - 100 * DAY_S))
    assert last_use_s(models["org/old"]) < now - 99 * DAY_S
    os.utime(tokenizer, (now, now - 100 * DAY_S))
    assert last_use_s(models["org/old"]) > now - DAY_S


def test_an_adapter_counts_as_a_model_does(run_mlxchat: RunMlxchat) -> None:
    arrays = {f"model.layers.0.self_attn.q_proj.lora_{each}": mx.zeros((4, 4)) for each in "ab"}
    file = hub_cache_dir() / "adapters.safetensors"
    file.parent.mkdir(parents=True)
    mx.save_safetensors(str(file), arrays)
    config = {"lora_parameters": {"rank": 4, "scale": 1.0}}
    files = {
        "adapter_config.json": json.dumps(config).encode(),
        "adapters.safetensors": file.read_bytes(),
    }
    snapshot = put_in_cache(hub_cache_dir(), "org/adapter", files)
    age("org/adapter", 100)
    assert run_mlxchat("models", "du").stdout.startswith("org/adapter\taaaaaaaa\t")
    dry = run_mlxchat("models", "prune", "--dry-run")
    assert dry.stdout.startswith("org/adapter\taaaaaaaa\t")
    read_adapter(FoundAdapter("org/adapter", snapshot))
    age("org/adapter", 100)
    assert run_mlxchat("models", "prune", "--yes").stdout == ""
    assert snapshot.is_dir()
    forget_use(snapshot)
    age("org/adapter", 100)
    assert "freed" in run_mlxchat("models", "prune", "--yes").stdout
    assert not repo_dir("org/adapter").exists()


def test_a_state_directory_that_cannot_be_written_changes_nothing(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(paths, "model_uses_dir", lambda: blocked / "used")
    record_use(models["org/new"])
    record_use(tmp_path)


def test_prune_deletes_what_was_not_used(models: dict[str, Path], run_mlxchat: RunMlxchat) -> None:
    dry = run_mlxchat("models", "prune", "--dry-run")
    assert dry.stdout.startswith("org/old\taaaaaaaa\t")
    assert dry.stdout.count("\n") == 1
    assert repo_dir("org/old").is_dir()
    refused = run_mlxchat("models", "prune")
    assert (refused.returncode, repo_dir("org/old").is_dir()) == (2, True)
    done = run_mlxchat("models", "prune", "--yes")
    assert done.stdout.splitlines()[-1].startswith("freed 3.")
    assert not repo_dir("org/old").exists()
    assert models["org/new"].is_dir()
    assert run_mlxchat("models", "prune", "--yes").stdout == ""
    assert run_mlxchat("models", "prune", "--unused", "-1").returncode == 2


def test_prune_asks_on_a_terminal(models: dict[str, Path]) -> None:
    for answer, stays in (("", True), ("y", False)):
        child = pexpect.spawn(
            sys.executable, ["-m", "mlxchat", "models", "prune"], encoding="utf-8", timeout=60
        )
        child.expect_exact("Delete this? [y/N]: ")
        child.sendline(answer)
        child.expect(pexpect.EOF)
        assert repo_dir("org/old").exists() is stays
    assert models["org/new"].is_dir()


def test_an_old_revision_goes_alone_and_frees_what_it_alone_has(
    models: dict[str, Path], run_mlxchat: RunMlxchat
) -> None:
    old = add_old_revision("org/old")
    record_use(models["org/old"])
    age("org/old", 100)
    extra_bytes = (old / "config.json").stat().st_size
    done = run_mlxchat("models", "prune", "--yes")
    assert done.stdout.splitlines()[-1] == f"freed {extra_bytes} B"
    assert not old.exists()
    assert (models["org/old"] / "model.safetensors").read_bytes()


def test_the_remains_of_a_download_are_shown_and_deleted(
    models: dict[str, Path], run_mlxchat: RunMlxchat
) -> None:
    remains = repo_dir("org/new") / "blobs" / "0123.incomplete"
    remains.write_bytes(b"half of it")
    then = time.time() - 100 * DAY_S
    os.utime(remains, (then, then))
    assert "org/new\tunfinished\t10 B" in run_mlxchat("models", "du").stdout
    assert run_mlxchat("models", "prune", "--yes").returncode == 0
    assert not remains.exists()
    assert (models["org/new"] / "model.safetensors").is_file()


def test_nothing_of_other_programs_is_shown_or_deleted(run_mlxchat: RunMlxchat) -> None:
    encoder = {**tiny_model_files(), "config.json": b'{"model_type": "bert"}'}
    snapshot = put_in_cache(hub_cache_dir(), "org/encoder", encoder)
    others = [
        hub_cache_dir() / "datasets--org--set" / "blobs" / "x",
        hub_cache_dir() / "models" / "y",
    ]
    for path in others:
        path.parent.mkdir(parents=True)
        path.write_text("theirs")
    age("org/encoder", 1000)
    assert run_mlxchat("models", "du").stdout == ""
    assert run_mlxchat("models", "prune", "--yes", "--unused", "0").stdout == ""
    assert snapshot.is_dir()
    assert all(path.is_file() for path in others)
