"""Signals while MLX keeps the worker busy: nothing hangs, nothing is lost.

The networks here spend their time in C, where no Python handler runs, as `mx.eval` does.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mlxchat.errors import ExitStatus
from mlxchat.sessions.listing import read_session
from mlxchat.terminal import Terminated
from mlxchat.terminal import worker as worker_module
from mlxchat.terminal.output import TerminalLine
from mlxchat.terminal.worker import END_AFTER_S, LAST_WORDS_S, Stop, Worker, in_worker
from tests.pseudo_terminal import PseudoTerminal
from tests.terminal_chat import CTRL_C, PROMPT

WILL_STOP = "stopping after this step; press Ctrl-C again to quit now"

# The program, with a model that is slow for many tokens at a time, or never loaded.
SLOW = """
import os, signal, sys
from ctypes import CDLL
from mlxchat.cli import main
from mlxchat.terminal import worker
from mlx_lm.models.llama import Model
import mlxchat.app.chat

def busy(seconds):
    sys.stderr.write("(busy)\\n")
    # A signal would end the sleep: let it find another thread, as it would not end `mx.eval`.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    CDLL(None).usleep(int(seconds * 1e6))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])

def step(model, tokens, *rest, **how):
    if tokens.shape[1] > 1:
        busy(float(os.environ["STEP_S"]))
    return call(model, tokens, *rest, **how)

call, Model.__call__ = Model.__call__, step
if "IN_LOADING" in os.environ:
    mlxchat.app.opening.load_model = lambda *_, **__: CDLL(None).usleep(int(6e8))
elif "IN_BEGINNING" in os.environ:
    mlxchat.app.chat.Conversation = lambda *_, **__: busy(600)
else:
    # So long that nobody waits for it, and short enough for a test.
    worker.END_AFTER_S = 0.5
main()
"""


def slow(*arguments: str) -> list[str]:
    return [sys.executable, "-c", SLOW, *arguments]


def start(*arguments: str, said: str | None = None) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        slow(*arguments),
        stdin=subprocess.DEVNULL if said is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if process.stdin is not None:
        process.stdin.write(said or "")
        process.stdin.flush()
    assert process.stderr is not None
    assert process.stderr.readline() == "(busy)\n"
    return process


def start_chat(*arguments: str) -> PseudoTerminal:
    chat = PseudoTerminal(slow(*arguments, "--session", "mine"), columns=120)
    chat.shows(PROMPT)
    return chat


# The worker


class Left(BaseException):
    """Raised where the process would have been ended."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(_: Stop, status: ExitStatus) -> None:
        raise Left(status)

    monkeypatch.setattr(Stop, "_leave", leave)
    monkeypatch.setattr(worker_module, "END_AFTER_S", 0.05)
    monkeypatch.setattr(worker_module, "REACTION_S", 0.05)


def stopped_by(numbers: Sequence[int], act: Callable[[Stop], object]) -> ExitStatus | None:
    """Send the signals to a part of a job that can be stopped, and do the rest of it."""

    def job() -> ExitStatus | None:
        with worker.stoppable() as stop:
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(0.2)
            act(stop)
        return stop.status

    with Worker() as worker:
        return worker.call(job)


def test_sigterm_and_sighup_have_five_seconds() -> None:
    assert END_AFTER_S + LAST_WORDS_S < 5


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ([signal.SIGTERM], ExitStatus.TERMINATED),
        ([signal.SIGHUP], ExitStatus.HUNG_UP),
        ([signal.SIGINT, signal.SIGINT], ExitStatus.INTERRUPTED),
        ([signal.SIGINT, signal.SIGTERM], ExitStatus.TERMINATED),
    ],
)
@pytest.mark.usefixtures("quick")
def test_a_job_that_does_not_end_is_ended(numbers: list[int], status: ExitStatus) -> None:
    with pytest.raises(Left) as left:
        stopped_by(numbers, lambda _: None)
    assert left.value.args == (status,)


@pytest.mark.usefixtures("quick")
def test_one_ctrl_c_is_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(TerminalLine, "announce", said.append)

    def job(worker: Worker, _: object) -> int:
        with worker.stoppable() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.4)
            assert stop.requested()
        return 0

    in_worker(job)
    assert said == [f"mlxchat: {WILL_STOP}"]


@pytest.mark.usefixtures("quick")
def test_a_finished_loop_may_take_time_to_save() -> None:
    def save(stop: Stop) -> None:
        stop.over()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)

    assert stopped_by([], save) is ExitStatus.TERMINATED


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_nobody_waits_for_what_cannot_be_stopped(number: int, raised: type[BaseException]) -> None:
    with Worker() as worker:
        job = worker.start(lambda: time.sleep(1))
        os.kill(os.getpid(), number)
        begun_s = time.monotonic()
        with pytest.raises(raised):
            worker.wait(job)
        assert time.monotonic() - begun_s < 0.5
        assert worker.is_busy
        worker.wait(job)


def test_a_signal_just_before_the_end_of_a_job_is_not_lost() -> None:
    with pytest.raises(Terminated):
        in_worker(lambda *_: os.kill(os.getpid(), signal.SIGTERM) or 0)


def test_a_ctrl_c_just_before_the_end_of_a_job_is_for_what_is_waited_for_next() -> None:
    """A chat in a pipe, whose reply had just ended, then waited for the next line for ever."""
    line = threading.Event()
    with Worker() as worker:
        worker.call(lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            worker.read(lambda: line.wait(60))
        line.set()


# The program


@pytest.mark.parametrize(
    ("command", "said"), [(["generate", "Hello " * 20], None), (["chat"], "Hello\n")]
)
def test_a_signal_in_the_middle_of_a_long_step_ends_the_program(
    command: list[str], said: str | None, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a step of four minutes, only `kill -9` had any effect."""
    monkeypatch.setenv("STEP_S", "600")
    process = start(*command, "-m", str(tiny_model), "--json", "--stats", said=said)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=100)
    assert (process.returncode, "Traceback" in stderr) == (143, False)
    first, last = map(json.loads, stdout.splitlines())
    assert (first["event"], last["event"]) == ("start", "done")
    assert (last["finish_reason"], last["prefilled_tokens"]) == ("interrupted", 0)
    assert last["prefill_tokens_per_s"] == 0


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_ctrl_c_announces_the_stop_and_the_second_one_quits(
    command: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, ordinary_terminal: None
) -> None:
    monkeypatch.setenv("STEP_S", "600")
    if command == "chat":
        terminal = start_chat("-m", str(tiny_model))
        terminal.send("Hello there\r")
    else:
        terminal = PseudoTerminal(slow("generate", "-m", str(tiny_model), "--raw", "Hello " * 20))
    # Drawn during the first step.
    terminal.shows(r"reading 0/\d+ tokens")
    terminal.send(CTRL_C)
    terminal.shows(f"^mlxchat: {WILL_STOP}$")
    terminal.send(CTRL_C)
    assert terminal.ends() == 130
    assert terminal.written.rstrip().endswith("\x1b[?25h")
    assert "reading" not in terminal.text()
    if command == "chat":
        assert [turn.user for turn in read_session("mine").turns] == ["Hello there"]


def test_a_message_that_is_stopped_before_its_reply_comes_back_with_its_files(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, ordinary_terminal: None, tmp_path: Path
) -> None:
    """Ctrl-C during the prefill lost the message and the files attached to it."""
    monkeypatch.setenv("STEP_S", "1")
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"contents of {name}\n")
    options = ("-n", "1", "--prefill-step-size", "128", "-f", str(tmp_path / "one"))
    chat = start_chat("-m", str(tiny_model), *options)
    chat.send(f"/file {tmp_path / 'two'}\r")
    chat.shows("attached .*two")
    chat.send("Compare them\r")
    again = "stopped: edit your message below, or send it again with 2 attachments"
    for stops in (1, 2):
        chat.shows(r"reading \d+/\d+ tokens")
        chat.send(CTRL_C)
        chat.shows(f"({again}\n> Compare them\n[^$]*){{{stops}}}2 attached")
        assert read_session("mine").turns == []
        chat.send("\r")
    chat.shows("stopped at 1 token")
    chat.shows(PROMPT)
    chat.send("\x04")
    assert chat.ends() == 0
    (turn,) = read_session("mine").turns
    assert turn.finish_reason == "length"
    assert [f"contents of {name}" in turn.user for name in ("one", "two")] == [True, True]
    assert turn.user.endswith("\n\nCompare them")


def test_a_message_that_is_stopped_while_loading_comes_back_with_its_file(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, ordinary_terminal: None, tmp_path: Path
) -> None:
    monkeypatch.setenv("IN_LOADING", "1")
    (tmp_path / "one").write_text("contents of one\n")
    chat = start_chat("-m", str(tiny_model), "-f", str(tmp_path / "one"))
    chat.send("Summarize it\r")
    for stops in (1, 2):
        chat.shows("^. loading ")
        chat.send(CTRL_C)
        chat.shows(f"(send it again with 1 attachment\n> Summarize it\n[^$]*){{{stops}}}")
        if stops == 1:
            chat.send("\r")
    chat.send("\x03\x04")
    assert chat.ends() == 0


@pytest.mark.usefixtures("ordinary_terminal")
@pytest.mark.parametrize(
    ("busy", "shown", "number"),
    [
        (("STEP_S", "0.2"), r"reading \d+/\d+ tokens", signal.SIGHUP),
        (("IN_LOADING", "1"), "^. loading ", signal.SIGTERM),
        # In the first step of a cache, which may take long.
        (("IN_BEGINNING", "1"), "^. loading ", signal.SIGTERM),
    ],
)
def test_a_chat_that_is_ended_before_its_reply_keeps_the_message(
    busy: tuple[str, str],
    shown: str,
    number: int,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the terminal was closed, the message was taken back, and nobody was there to see it."""
    monkeypatch.setenv(*busy)
    chat = start_chat("-m", str(tiny_model), "--prefill-step-size", "16")
    chat.send("Hello there, it is late\r")
    chat.shows(shown)
    chat.child.kill(number)
    assert chat.ends() == 128 + number
    (turn,) = read_session("mine").turns
    assert (turn.user, turn.reply) == ("Hello there, it is late", "")


@pytest.mark.parametrize("start", [["-m", "mlxchat"], [f"{sys.prefix}/bin/mlxchat"]])
def test_ctrl_c_before_the_first_import_ends_the_program_silently(
    start: list[str], tmp_path: Path
) -> None:
    """Ctrl-C in the first quarter of a second printed a traceback."""
    # A module that the package imports first: it gets Ctrl-C before anything else can happen.
    (tmp_path / "typing.py").write_text("import os; os.kill(os.getpid(), 2); 1 / 0\n")
    process = subprocess.run(
        [sys.executable, *start, "--help"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[1]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stderr) == (-signal.SIGINT, "")
