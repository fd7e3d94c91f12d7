"""`mlxchat doctor`: its findings, its robustness, and that it reveals no secret."""

import json
import locale
import os
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mlxchat import paths, platform
from mlxchat.doctor import Finding, Verdict, disk, examine, hub, machine, terminal
from mlxchat.doctor.finding import found_by
from mlxchat.models.catalog import RECOMMENDED
from mlxchat.models.hub_cache import hub_cache_dir
from mlxchat.terminal.report import format_line
from tests.conftest import RunMlxchat
from tests.fake_hub import FakeHub, FakeRepo
from tests.pseudo_terminal import PseudoTerminal

SECRET = "hf_secret"


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


def findings(
    run_mlxchat: RunMlxchat, *arguments: str, status: int
) -> dict[str, list[dict[str, Any]]]:
    """The program's findings, by topic."""
    done = run_mlxchat("doctor", "--json", *arguments)
    assert (done.returncode, done.stderr) == (status, "")
    topics: dict[str, list[dict[str, Any]]] = {}
    for finding in map(json.loads, done.stdout.splitlines()):
        topics.setdefault(finding["topic"], []).append(finding)
    return topics


TOPICS = [
    *("mlxchat", "python", "mlx", "mlx-lm", "device", "wired limit", "memory", "BLAS", "prefill"),
    *("configuration", "model", "hub cache", "converted models", "prefix cache", "sessions"),
    *("terminal", "characters", "hub token"),
]


def test_everything_is_examined_once_and_nothing_is_created(
    run_mlxchat: RunMlxchat, temporary_home: Path
):
    before = sorted(temporary_home.rglob("*"))
    found = findings(run_mlxchat, "--offline", status=0)
    assert list(found) == TOPICS
    assert all(len(each) == 1 for each in found.values())
    assert sorted(temporary_home.rglob("*")) == before


def test_a_pipe_gets_one_line_per_finding_separated_by_tabs(run_mlxchat: RunMlxchat):
    done = run_mlxchat("doctor", "--offline")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[1] for row in rows] == TOPICS
    assert all(len(row) == 4 and row[0] in list(Verdict) for row in rows)


def test_a_terminal_gets_wrapped_columns_and_a_summary():
    program = PseudoTerminal([sys.executable, "-m", "mlxchat", "doctor", "--offline"], columns=60)
    status = program.ends()
    text = program.written.replace("\r\n", "\n")
    assert status == 0
    assert "\x1b" not in text
    assert all(len(line) < 60 or "/" in line for line in text.split("\n"))
    assert text.rstrip().endswith(("mlxchat: all is well", "warning", "warnings"))


# Broken configurations and installations


def test_a_broken_configuration_is_a_finding_and_the_rest_is_examined(
    run_mlxchat: RunMlxchat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLXCHAT_CHAT_TMEP", "1")
    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text("model = ")
    found = findings(run_mlxchat, "--offline", status=1)
    assert list(found) == TOPICS
    problems = [(each["verdict"], each["fix"]) for each in found["configuration"]]
    assert problems == [
        ("problem", "mlxchat config edit"),
        ("problem", "unset the variable, or give it another value"),
    ]
    assert [each["found"].partition(": ")[0] for each in found["configuration"]] == [
        str(paths.config_file()),
        "MLXCHAT_CHAT_TMEP",
    ]


def test_a_wrong_value_in_the_configuration_is_a_problem(run_mlxchat: RunMlxchat):
    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text("[chat]\ntemp = -1\n")
    found = findings(run_mlxchat, "--offline", status=1)["configuration"]
    assert found[0]["found"] == (
        f"{paths.config_file()}: chat.temp: --temp must be 0 or more, got -1.0"
    )


def test_without_mlx_the_rest_is_examined(
    run_program: RunMlxchat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").touch()
    (tmp_path / "mlx" / "core.py").write_text("raise ImportError('libmlx.so: no such file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = findings(run_program, "--offline", status=1)
    assert "libmlx.so: no such file" in found["device"][0]["found"]
    assert found["device"][0]["verdict"] == "problem"
    assert found["sessions"][0]["verdict"] == "ok"


def test_a_check_that_raises_is_a_finding():
    def breaks() -> Iterable[Finding]:
        yield Finding("x", Verdict.OK, "fine")
        raise KeyError("what")

    first, second = found_by("x", breaks)
    assert first.verdict is Verdict.OK
    assert (second.verdict, second.found) == (
        Verdict.PROBLEM,
        "check failed: KeyError: 'what'",
    )


def test_ctrl_c_still_ends_it():
    def interrupted() -> Iterable[Finding]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(found_by("x", interrupted))


# The machine


def test_untested_and_missing_versions_are_reported(monkeypatch: pytest.MonkeyPatch):
    versions = {"mlx": None, "mlx-lm": "9.9"}
    monkeypatch.setattr(platform, "installed_version", versions.get)
    found = {each.topic: each for each in machine.versions()}
    assert found["mlx"].verdict is Verdict.PROBLEM
    assert found["mlx-lm"].verdict is Verdict.WARNING
    assert found["mlx-lm"].found.startswith("9.9 is untested; tested: ")
    assert found["mlx-lm"].fix == f"pip install 'mlx-lm{platform.tested_ranges()['mlx-lm']}'"


def test_little_memory_and_a_slow_blas_are_warnings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "free_memory_bytes", lambda: 500_000_000)
    assert only(machine.memory()).verdict is Verdict.WARNING
    monkeypatch.setattr(platform, "has_fast_blas", lambda: False)
    slow = only(machine.blas())
    assert slow.verdict is Verdict.WARNING
    assert "libopenblas0-pthread" in str(slow.fix)


def test_the_prefill_step_for_this_device_is_recommended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "cpu_cores", lambda: 1)
    assert only(machine.prefill()).found == (
        "steps of 512 tokens, computed on one core; larger ones are no faster"
    )
    monkeypatch.setattr(platform, "on_gpu", lambda: True)
    found = only(machine.prefill()).found
    assert found.startswith("steps of 512 tokens; ")
    assert found.endswith(" tries larger ones on long prompts")


def test_the_wired_limit_is_reported_with_metal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "recommended_working_set_bytes", lambda: 12_000_000_000)
    monkeypatch.setattr(platform, "total_memory_bytes", lambda: 16_000_000_000)
    *_, limit = machine.device()
    assert limit.topic == "wired limit"
    assert limit.found.startswith("12.0 GB of 16.0 GB can be wired")


# The disk


def test_sizes_are_reported_and_each_file_is_counted_once(tmp_path: Path):
    snapshot = hub_cache_dir() / "models--a--b" / "snapshots"
    snapshot.mkdir(parents=True)
    blob = hub_cache_dir() / "models--a--b" / "blob"
    blob.write_bytes(b"x" * 2000)
    (snapshot / "link").symlink_to(blob)
    os.link(blob, snapshot / "hard")
    (snapshot / "loop").symlink_to(hub_cache_dir())
    finding = only(disk.hub_cache())
    assert (finding.verdict, finding.found.split(" in ")[0]) == (Verdict.OK, "2.00 kB")


def test_a_directory_that_cannot_be_written_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for check in (disk.hub_cache, disk.converted_models, disk.sessions):
        finding = only(check())
        assert finding.verdict is Verdict.PROBLEM
        assert finding.found.endswith(" cannot be written")


def test_a_file_instead_of_a_directory_is_a_problem():
    paths.sessions_dir().parent.mkdir(parents=True)
    paths.sessions_dir().touch()
    assert only(disk.sessions()).found == f"{paths.sessions_dir()} is not a directory"


def test_a_full_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=900_000_000))
    assert only(disk.sessions()).fix == "free some space on this disk"
    finding = only(disk.prefix_cache(4_000_000_000))
    assert finding.verdict is Verdict.WARNING
    assert "disabled, since it may grow to 4.00 GB" in finding.found
    assert only(disk.prefix_cache(100_000_000)).verdict is Verdict.OK


def test_sessions_that_others_can_read_are_a_warning():
    paths.sessions_dir().mkdir(parents=True, mode=0o700)
    assert only(disk.sessions()).verdict is Verdict.OK
    paths.sessions_dir().chmod(0o755)
    *_, finding = disk.sessions()
    assert finding.fix == f"chmod go-rwx '{paths.sessions_dir()}'"


# The hub and the model


def test_a_token_is_found_and_never_shown(
    run_mlxchat: RunMlxchat, monkeypatch: pytest.MonkeyPatch, temporary_home: Path
):
    assert only(hub.token()).found.startswith("none")
    file = temporary_home / "huggingface" / "token"
    file.parent.mkdir()
    file.write_text(SECRET)
    assert only(hub.token()).found == f"in {file}"
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert only(hub.token()).found == "in HF_TOKEN"
    for arguments in ([], ["--json"]):
        done = run_mlxchat("doctor", "--offline", *arguments)
        assert SECRET not in done.stdout + done.stderr


def test_a_hub_that_answers_is_ok(run_program: RunMlxchat, monkeypatch: pytest.MonkeyPatch):
    with FakeHub({RECOMMENDED[0].hub_id: FakeRepo({"config.json": b"{}"})}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        found = findings(run_program, status=0)
    assert found["hub"][0]["found"] == f"{server.endpoint} answers"
    assert list(found) == [*TOPICS, "hub"]


def test_a_hub_that_cannot_be_reached_is_a_warning(
    run_program: RunMlxchat, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    (finding,) = findings(run_program, status=0)["hub"]
    assert finding["verdict"] == "warning"
    assert finding["found"].startswith("cannot reach http://127.0.0.1:9")


def test_a_hub_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "PATIENCE_S", 0.01)
    monkeypatch.setattr(hub, "_asked", lambda endpoint: time.sleep(60))
    assert "does not answer" in only(hub.access()).found


def test_the_hub_is_not_contacted_when_offline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(hub, "_asked", lambda endpoint: pytest.fail("asked"))
    assert only(hub.access()).verdict is Verdict.OK


def test_the_default_model_is_reported(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MLXCHAT_MODEL", str(tiny_model))
    assert only(hub.model()) == Finding("model", Verdict.OK, f"{tiny_model}, set by MLXCHAT_MODEL")
    monkeypatch.setenv("MLXCHAT_MODEL", "org/absent")
    assert only(hub.model()).fix == "run `mlxchat models pull org/absent`"
    monkeypatch.setenv("MLXCHAT_MODEL", "smolm2")
    finding = only(hub.model())
    assert finding.verdict is Verdict.PROBLEM
    assert "did you mean smollm2?" in finding.found


def test_without_any_model_it_shows_how_to_get_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "embedded_model", lambda: None)
    assert only(hub.model()).fix == "run `mlxchat models pull NAME`"


# The terminal


def test_a_locale_without_utf8_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locale, "getencoding", lambda: "ISO-8859-1")
    for system, name in (("linux", "C.UTF-8"), ("darwin", "en_US.UTF-8")):
        monkeypatch.setattr(sys, "platform", system)
        *_, characters = terminal.terminal()
        assert characters.verdict is Verdict.WARNING
        assert f"LANG={name}," in str(characters.fix)


@pytest.mark.parametrize(
    ("variables", "columns", "text"),
    [
        ({"TERM": "xterm-256color"}, 100, "ok       terminal          100 columns, 24 lines, 256"),
        pytest.param(
            *({"TERM": "xterm", "COLORTERM": "truecolor"}, 100, "16 million colours"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *({"TERM": "xterm-256color", "NO_COLOR": "1"}, 100, "no colours: NO_COLOR"),
            marks=pytest.mark.slow,
        ),
        ({"TERM": "dumb"}, 100, "warning  terminal          100 columns, 24 lines, TERM=dumb"),
        ({"TERM": "xterm"}, 30, "warning  terminal"),
    ],
)
def test_the_terminal_is_described(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], columns: int, text: str
):
    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    program = PseudoTerminal(
        [sys.executable, "-m", "mlxchat", "doctor", "--offline"], columns=columns
    )
    program.ends()
    assert text in program.written


def test_text_wraps_in_its_column_or_moves_below_in_a_narrow_terminal():
    arguments = ("warning", "hub", "one two three four five six seven eight", "do this\x1b[2J")
    assert format_line(*arguments, columns=60) == (
        "warning  hub               one two three four five six\n"
        "                           seven eight\n"
        "                           → do this␛[2J\n"
    )
    assert format_line(*arguments, columns=25) == (
        "warning  hub\n  one two three four\n  five six seven eight\n  → do this␛[2J\n"
    )


def test_no_check_can_stop_the_others(monkeypatch: pytest.MonkeyPatch):
    """Each check in turn raises, and every other one still runs."""

    def fails(*_: object) -> Iterable[Finding]:
        raise RuntimeError("broken")

    for module, name in ((machine, "versions"), (machine, "memory"), (disk, "sessions")):
        monkeypatch.setattr(module, name, fails)
    found = list(examine(configuration=fails, prefix_cache_bytes=0, offline=True))
    broken = [each.topic for each in found if "RuntimeError: broken" in each.found]
    assert broken == ["versions", "memory", "configuration", "sessions"]
    assert found[-1].topic == "hub token"
