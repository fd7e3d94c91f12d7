"""`mlxchat generate`: its events, exit statuses and errors in one line."""

import json
import sys
from pathlib import Path

import pytest

from mlxchat.cli.machine import doctor
from mlxchat.errors import OutputError
from mlxchat.terminal.output import Stdout
from scripts.tiny_model import CHAT_TEMPLATE
from tests.in_process import run_in_process, run_quietly
from tests.json_events import events_of
from tests.scripted_model import Scripted
from tests.scripted_program import say_scripts
from tests.terminal import interrupt, on_terminal


def test_events_follow_the_schema_in_the_manual_and_a_seed_can_be_reused(tiny_model: Path) -> None:
    arguments = [
        *("generate", "-m", str(tiny_model), "--json", "--logprobs", "3", "-n", "20"),
        *("--temp", "1", "--ignore-eos", "Hello"),
    ]
    lines = events_of(run_in_process(*arguments).stdout)
    assert [line["event"] for line in lines] == ["start", *["token"] * (len(lines) - 2), "done"]
    tokens, done = lines[1:-1], lines[-1]
    assert "".join(token["text"] for token in tokens) == done["text"]
    assert sum(token["id"] is not None for token in tokens) == 20
    assert all(len(token["top"]) == 3 for token in tokens if token["id"] is not None)
    assert (done["finish_reason"], done["generated_tokens"]) == ("length", 20)
    again = events_of(run_in_process(*arguments, "--seed", str(done["seed"])).stdout)[-1]
    assert (again["seed"], again["text"]) == (done["seed"], done["text"])


def test_invalid_utf8_is_reported_with_its_position_unless_quiet(tiny_model: Path) -> None:
    arguments = ["generate", "-m", str(tiny_model), "-n", "2"]
    done = run_in_process(*arguments, stdin=b"caf\xe9")
    assert done.returncode == 0
    assert "byte 3" in done.stderr
    assert run_in_process(*arguments, "-q", stdin=b"caf\xe9").stderr == ""


@pytest.mark.usefixtures("ordinary_terminal")
def test_ctrl_c_ends_it_and_keeps_the_text(tiny_model: Path) -> None:
    status, terminal = on_terminal(
        *("generate", "-m", str(tiny_model), "--json", "--ignore-eos", "Hello"),
        steps=[('"token"', interrupt)],
    )
    assert status == 130
    lines, _, figures = terminal.written.rpartition("\nprompt ")
    every = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    assert (every[-1]["event"], every[-1]["finish_reason"]) == ("done", "interrupted")
    assert every[-1]["text"] == "".join(e["text"] for e in every if e["event"] == "token")
    assert figures.endswith("finish reason: interrupted\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_stdout_that_is_closed_or_full_is_an_error() -> None:
    with Path("/dev/full").open("w") as full, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        with pytest.raises(OutputError, match="standard output: No space left on device"):
            Stdout().write("text")
        patch.setattr(sys, "stdout", None)
        for use in (Stdout, doctor):
            with pytest.raises(OutputError, match="standard output is closed"):
                use()


def test_it_runs_without_a_writable_home(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/proc/nowhere")
    run_quietly("generate", "-m", str(tiny_model), "-n", "2", "Hello")


@pytest.mark.parametrize(
    ("text", "options", "written"),
    [
        ("One line.\nTwo.", [], "One line.\nTwo.\n"),
        ("One line.\n", [], "One line.\n"),
        ("", [], ""),
        ("One line.", ["-n", "3"], "One\n"),
        ("One line.\nTwo.", ["--stop", "Two"], "One line.\n"),
    ],
)
def test_the_output_ends_with_one_newline_unless_it_is_empty(
    text: str, options: list[str], written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`generate … | while read line` lost the last line. It is the same in a file."""
    say_scripts(monkeypatch)
    model = Scripted(CHAT_TEMPLATE, (), f"{text}<|im_end|>").write(tmp_path / "model")
    arguments = ["generate", "-m", str(model), *options, "Hello"]
    assert run_quietly(*arguments) == written
    assert run_quietly(*arguments, "-o", str(tmp_path / "out.txt")) == ""
    assert (tmp_path / "out.txt").read_text() == written
