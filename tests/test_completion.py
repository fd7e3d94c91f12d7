"""Completion as shells request it: through variables, in one process per press of Tab."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from mlxchat import cli, paths
from mlxchat.chat.state import Turn
from mlxchat.models.catalog import BUILT_IN_ALIASES
from mlxchat.models.hub_cache import hub_cache_dir
from mlxchat.sessions.session import Session
from tests.fake_hub import put_in_cache

Ask = Callable[..., list[str]]
HEAVY = ("mlx.core", "numpy", "huggingface_hub", "prompt_toolkit", "tomlkit")


Run = Callable[[dict[str, str]], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """As a shell does, but in this process, which is faster."""

    def in_process(variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        with monkeypatch.context() as patch:
            for name in ("COMP_WORDS", "COMP_CWORD", "_TYPER_COMPLETE_ARGS", "COLUMNS"):
                patch.setenv(name, "")
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                cli.main()
        assert isinstance(ended.value.code, int)
        return subprocess.CompletedProcess([], ended.value.code, *capsys.readouterr())

    return in_process


def line_for(shell: str, *words: str) -> dict[str, str]:
    """The variables with which a shell asks for completions of the last word."""
    return {
        "_MLXCHAT_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "\n".join(["mlxchat", *words]),
        "COMP_CWORD": str(len(words)),
        "_TYPER_COMPLETE_ARGS": " ".join(["mlxchat", *words]),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }


@pytest.fixture(params=["bash", "zsh", "fish"])
def ask(request: pytest.FixtureRequest, run: Run) -> Ask:
    """The completions each shell gets."""
    return lambda *words: completed_names(request.param, run(line_for(request.param, *words)))


def completed_names(shell: str, done: "subprocess.CompletedProcess[str]") -> list[str]:
    """The names, without their descriptions. Nothing may go to stderr."""
    assert (done.returncode, done.stderr) == (0, "")
    if shell != "zsh":
        return [line.split("\t")[0] for line in done.stdout.splitlines() if line]
    if done.stdout.strip() == "_files":
        return []
    inner = done.stdout.partition("((")[2].rpartition("))")[0]
    return [line.split('"')[1] for line in inner.splitlines()]


def make_session(name: str) -> None:
    with Session.open(name, create=True) as session:
        session.record(None, [Turn("hello", "yes", finish_reason="stop")])


def write_config(text: str) -> None:
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(text)


def test_commands_options_models_sessions_and_keys_are_completed_in_every_shell(
    ask: Ask, tiny_model: Path
):
    write_config('[aliases]\nqwork = "/models/work"\n')
    put_in_cache(
        hub_cache_dir(), "qorg/tiny", {p.name: p.read_bytes() for p in tiny_model.iterdir()}
    )
    make_session("holidays")
    assert ask("ge") == ["generate"]
    assert ask("generate", "--max-k") == ["--max-kv-size"]
    assert ask("--max-k") == ["--max-kv-size"]
    qwen = [name for name in BUILT_IN_ALIASES if name.startswith("q")]
    assert sorted(ask("generate", "-m", "q")) == sorted(["qwork", *qwen, "qorg/tiny"])
    assert ask("--model", "qwo") == ["qwork"]
    assert ask("models", "rm", "q") == ["qorg/tiny"]
    assert ask("--session", "ho") == ["holidays"]
    assert ask("session", "show", "") == ["holidays"]
    assert ask("config", "set", "chat.max-k") == ["chat.max-kv-size"]
    assert ask("config", "set", "aliases.") == ["aliases.qwork"]
    assert ask("config", "show", "gen")[0] == "generate"
    assert ask("generate", "--device", "") == ["auto", "cpu", "gpu"]


def test_files_are_left_to_the_shell(ask: Ask):
    for words in (
        ["generate", "-f", ""],
        ["generate", "-o", "x"],
        ["generate", "--resume", ""],
        ["session", "import", ""],
        ["generate", "-m", "./"],
        ["generate", "-m", "/"],
        ["generate", "-m", "~/"],
    ):
        assert ask(*words) == []


def test_nothing_heavy_is_imported():
    paths.prefix_cache_dir().mkdir(parents=True)
    make_session("x")
    lines = [
        line_for("bash", *words)
        for words in (
            ["generate", "-m", ""],
            ["session", "show", ""],
            ["config", "set", ""],
            ["generate", "--"],
            [""],
        )
    ]
    program = (
        "import os, sys; from contextlib import suppress; from mlxchat.cli import main\n"
        f"for variables in {lines}:\n"
        "    os.environ.update(variables)\n"
        "    with suppress(SystemExit): main()\n"
        f"sys.__stderr__.write(repr([x for x in {HEAVY} if x in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "[]")
    assert "smollm2" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell", "nothing", ""])
def test_errors_never_appear_in_the_command_line(
    shell: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    write_config("broken = ")
    monkeypatch.setenv("MLXCHAT_CHAT_TMEP", "1")
    paths.sessions_dir().parent.mkdir(parents=True)
    paths.sessions_dir().write_text("no directory")
    hub_cache_dir().parent.mkdir(parents=True)
    hub_cache_dir().write_text("no directory")
    paths.prefix_cache_dir().mkdir(parents=True)
    (paths.prefix_cache_dir() / "index.sqlite").mkdir()
    lines = [
        ["generate", "-m", ""],
        ["session", "show", ""],
        ["config", "set", "x", ""],
        ["generate", "--no-such", ""],
        ["nosuch", ""],
        ["generate", "--temp", "hot", "-m", ""],
        ["generate", "'"],
        ["\x1b[31m", "\udc80"],
    ]
    for words in lines:
        done = run(line_for(shell, *words))
        assert done.stderr == ""
        assert "rror" not in done.stdout
    assert "smollm2" in run(line_for("bash", "generate", "-m", "")).stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="it is bash that is asked")
def test_completion_works_in_bash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """All of it together: the script, the variables, bash's splitting into words, the quoting."""
    make_session("my trip")
    program = tmp_path / "mlxchat"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mlxchat "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    child = pexpect.spawn("bash", ["--norc", "--noprofile"], encoding="utf-8", timeout=100)
    child.sendline("PS1='> '; bind 'set enable-bracketed-paste off'")
    child.sendline('eval "$(mlxchat --show-completion bash)"; echo rea""dy')
    child.expect("ready")
    for typed, completed in {
        "session show m\t": "show my trip",
        "gener\t": "generate",
    }.items():
        child.send(f"\x15mlxchat {typed}")
        child.send("\x01echo [\x05]\n")
        child.expect_exact(f"{completed} ]" if completed != "show my trip" else "show my trip ]")
