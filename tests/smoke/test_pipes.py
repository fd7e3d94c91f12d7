"""Standard streams that are closed, full or nobody reads, and what a process imports."""

import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pexpect
import pytest

from tests.test_session_store import make_session

GENERATE = [sys.executable, "-m", "mlxchat", "generate"]


def start(tiny_model: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*GENERATE, "-m", str(tiny_model), "--ignore-eos", *arguments],
        # A buffer would keep lines that were written before `communicate` is called from it.
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_closed_pipe_ends_it_silently(tiny_model: Path) -> None:
    with start(tiny_model, "--temp", "1", "Hello") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(timeout=100) == 141
        assert process.stderr.read() == b""


def test_a_second_signal_ends_it_immediately_even_without_a_reader(tiny_model: Path) -> None:
    """At exit, the interpreter used to wait to flush output that nobody would read."""
    with start(tiny_model, "--json", "Hello") as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            wait_until_full(process.stdout.fileno())
            # The first may not have been taken when the second comes.
            while process.poll() is None:
                process.send_signal(signal.SIGINT)
                time.sleep(0.05)
            assert process.returncode == -signal.SIGINT  # a shell's loop ends, too
        finally:
            process.kill()


def wait_until_full(pipe: int) -> None:
    """Wait until there is no room for another event, whose writer then waits for a reader."""
    room, waiting = 65_536, 0
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        room = fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4_096)
    while waiting < room - 512:
        time.sleep(0.01)
        (waiting,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))


def test_other_standard_streams_may_be_closed(tiny_model: Path) -> None:
    command = " ".join([*GENERATE, "-m", str(tiny_model), "-n", "2", "Hello", "<&- 2>&-"])
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout


def test_a_batch_with_an_output_needs_no_stdout(tiny_model: Path, tmp_path: Path) -> None:
    options = f"--lines -n 2 -m {tiny_model} -o {tmp_path}/out"
    command = f"echo hi | {sys.executable} -m mlxchat batch {options} >&-"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0
    assert (tmp_path / "out").read_text()


# Runs the program with each of the arguments, and then prints which of the modules are imported.
IMPORTED = """
import json, sys
from contextlib import suppress
from mlxchat import cli
leave, cli._exit = cli._exit, sys.exit
for sys.argv[1:] in json.loads(sys.argv[1]):
    with suppress(SystemExit): cli.main()
print("imported", *sorted({*%r} & {*sys.modules}))
leave(0)
"""
SLOW_FOR_HELP = ("mlx.core", "numpy", "jinja2", "llguidance", "prompt_toolkit", "tomlkit")
SLOW_FOR_ALL = ("transformers", "mlx_lm.utils", "huggingface_hub", "gguf", "rich.progress")


def test_what_is_slow_to_import_is_imported_only_if_it_is_needed(tiny_model: Path) -> None:
    helps = [[*each, "--help"] for each in ([], ["generate"], ["models"], ["config", "set"])]
    tab = {
        "_MLXCHAT_COMPLETE": "complete_bash",
        "COMP_WORDS": "mlxchat\ngenerate\n-m\nsmol",
        "COMP_CWORD": "3",
    }
    for calls, variables, slow in (
        (helps, {}, (*SLOW_FOR_ALL, *SLOW_FOR_HELP, "pydantic")),
        ([[]], tab, (*SLOW_FOR_ALL, *SLOW_FOR_HELP)),
        ([["generate", "-m", str(tiny_model), "-n", "1", "Hello"]], {}, SLOW_FOR_ALL),
    ):
        done = subprocess.run(
            [sys.executable, "-c", IMPORTED % (slow,), json.dumps(calls)],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout) > len("imported\n")
        assert done.stdout.endswith("imported\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="it is bash that is asked")
def test_completion_works_in_bash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
    child.sendline('s=$(mlxchat --show-completion bash) && eval "$s" && echo rea""dy')
    child.expect("ready")
    child.send("mlxchat session show m\t\x01echo [\x05]\n")
    child.expect_exact("show my trip ]")
