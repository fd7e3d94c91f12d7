"""`mlxchat doctor`: its findings, and its robustness."""

import json
import shutil
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mlxchat import doctor, paths
from mlxchat.doctor import Finding, Verdict, examine
from tests.in_process import run_in_process, write_config


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


def findings(*arguments: str, status: int) -> dict[str, list[dict[str, Any]]]:
    """The program's findings, by topic."""
    done = run_in_process("doctor", "--json", *arguments)
    assert (done.returncode, done.stderr) == (status, "")
    topics: dict[str, list[dict[str, Any]]] = {}
    for finding in map(json.loads, done.stdout.splitlines()):
        topics.setdefault(finding["topic"], []).append(finding)
    return topics


TOPICS = [
    *("mlxchat", "python", "mlx", "mlx-lm", "device", "memory", "BLAS"),
    *("configuration", "model", "hub cache", "prefix cache", "sessions"),
    "terminal",
]


def test_everything_is_examined_once_and_nothing_is_created(temp_home: Path):
    before = sorted(temp_home.rglob("*"))
    found = findings("--offline", status=0)
    assert list(found) == TOPICS
    assert all(len(each) == 1 for each in found.values())
    assert sorted(temp_home.rglob("*")) == before


def test_a_broken_configuration_is_a_finding_among_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLXCHAT_CHAT_TMEP", "1")
    write_config("model = ")
    found = findings("--offline", status=1)
    assert list(found) == TOPICS
    assert [(each["found"].partition(": ")[0], each["fix"]) for each in found["configuration"]] == [
        (str(paths.config_file()), "mlxchat config edit"),
        ("MLXCHAT_CHAT_TMEP", "unset the variable, or give it another value"),
    ]


def test_an_untested_version_is_reported(monkeypatch: pytest.MonkeyPatch):
    real = metadata.version
    assert all(each.verdict is Verdict.OK for each in doctor.versions())
    monkeypatch.setattr(metadata, "version", lambda name: "9.9" if name == "mlx-lm" else real(name))
    found = {each.topic: each for each in doctor.versions()}
    assert (found["mlx"].verdict, found["mlx-lm"].verdict) == (Verdict.OK, Verdict.WARNING)
    assert found["mlx-lm"].found.startswith("9.9, tested: ")
    assert (found["mlx-lm"].fix or "").startswith("pip install 'mlx-lm<")


def test_a_full_disk_is_a_warning_and_a_file_in_the_place_of_a_directory_a_problem(
    monkeypatch: pytest.MonkeyPatch,
):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=900_000_000))
    found = list(doctor.directories())
    assert [each.topic for each in found] == ["hub cache", "prefix cache", "sessions"]
    assert {(each.verdict, each.fix) for each in found} == {(Verdict.WARNING, "free some space")}
    paths.sessions_dir().parent.mkdir(parents=True, exist_ok=True)
    paths.sessions_dir().touch(0o755)
    assert [*doctor.directories()][-1].verdict is Verdict.PROBLEM


def test_the_default_is_shown(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLXCHAT_MODEL", str(tiny_model))
    assert only(doctor.model()) == Finding(f"{tiny_model}, set by MLXCHAT_MODEL")
    monkeypatch.setenv("MLXCHAT_MODEL", "org/absent")
    assert only(doctor.model()).fix == "run `mlxchat models pull org/absent`"
    monkeypatch.setenv("MLXCHAT_MODEL", "smolm2")
    assert only(doctor.model()).verdict is Verdict.PROBLEM


def test_no_check_can_stop_the_others(monkeypatch: pytest.MonkeyPatch):
    fails = Mock(side_effect=RuntimeError("broken"))
    names = ["versions", "memory", "configuration", "directories"]
    for name in names:
        monkeypatch.setitem(doctor.CHECKS, name, fails)
    found = list(examine(offline=True))
    assert [each.topic for each in found if "RuntimeError: broken" in each.found] == names
    assert found[-1].topic == "terminal"
