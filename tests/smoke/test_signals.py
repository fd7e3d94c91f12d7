"""Signals while MLX keeps the process in C, or the hub is slow: nothing hangs, nothing is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlxchat.models.hub_cache import cached_snapshot
from mlxchat.sessions.listing import read_session
from mlxchat.terminal.worker import WILL_STOP
from tests.fake_hub import FakeHub, FakeRepo, tiny_model_files
from tests.smoke.pseudo_terminal import PseudoTerminal
from tests.terminal import CTRL_C, PROMPT

# The program, with a model that takes ten minutes for many tokens at a time.
SLOW = """
import os, signal, sys
from ctypes import CDLL
from mlxchat.cli import main
from mlxchat.terminal import worker
from mlx_lm.models.llama import Model

def step(model, tokens, *rest, **how):
    if tokens.shape[1] > 1:
        sys.stderr.write("(busy)\\n")
        # A signal would end the sleep: let it find another thread, as it would not end `mx.eval`.
        signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        CDLL(None).usleep(int(6e8))
    return call(model, tokens, *rest, **how)

call, Model.__call__ = Model.__call__, step
worker.END_AFTER_S = 0.1
main()
"""


def test_a_signal_in_the_middle_of_a_long_step_ends_the_program(tiny_model: Path) -> None:
    """During a step of four minutes, only `kill -9` had any effect."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, "chat", "-m", str(tiny_model), "--json", "--stats", "Hello"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "(busy)\n"
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=100)
    assert (process.returncode, "Traceback" in stderr) == (143, False)
    first, last = map(json.loads, stdout.splitlines())
    assert (first["event"], last["event"]) == ("start", "done")
    assert (last["finish_reason"], last["prefilled_tokens"]) == ("interrupted", 0)
    assert last["prefill_tokens_per_s"] == 0


def test_one_ctrl_c_stops_and_a_second_quits(tiny_model: Path, ordinary_terminal: None) -> None:
    command = [sys.executable, "-c", SLOW, "-m", str(tiny_model), "--session", "mine"]
    terminal = PseudoTerminal(command, columns=120)
    terminal.shows(PROMPT)
    # Drawn during the first step.
    terminal.send("Hello there\r", shows=r"reading 0/\d+ tokens")
    terminal.send(CTRL_C, shows=f"^{WILL_STOP}$")
    terminal.send(CTRL_C, shows="^saved; resume with: mlxchat --session mine$")
    assert terminal.ends() == -signal.SIGINT
    assert terminal.written.rstrip().endswith("\x1b[?25h")
    assert "reading" not in terminal.text()
    assert [turn.user for turn in read_session("mine").turns] == ["Hello there"]


def test_ctrl_c_before_the_first_import_ends_the_program_silently(tmp_path: Path) -> None:
    """Ctrl-C in the first quarter of a second printed a traceback."""
    # A module that the package imports first: it gets Ctrl-C before anything else can happen.
    (tmp_path / "typing.py").write_text("import os; os.kill(os.getpid(), 2); 1 / 0\n")
    for start in (["-m", "mlxchat"], [f"{sys.prefix}/bin/mlxchat"]):
        process = subprocess.run(
            [sys.executable, *start, "--help"],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (process.returncode, process.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_ends_a_download_without_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library alone waits for files in progress: minutes on a slow line."""
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    repo = FakeRepo(tiny_model_files(payload_bytes=5_000_000))
    with FakeHub({"org/tiny": repo}, seconds_per_chunk=0.3) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        command = [sys.executable, "-m", "mlxchat", "models", "pull", "org/tiny"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while "model.safetensors" not in hub.sent_names:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        # The rest takes a minute and a half.
        ended = process.communicate(timeout=60)
    assert (process.returncode, *ended) == (-signal.SIGINT, b"", b"")
    assert cached_snapshot("org/tiny") is None
