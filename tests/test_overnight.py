"""Overnight runs of `mlxchat generate`: whatever happens to the process, the text is the same."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import psutil
import pytest

from scripts.tiny_model import write_tiny_model
from tests.conftest import RunMlxchat
from tests.in_process import run_in_process

TEXT = "The sea was calm, and nothing moved. "
ENDLESS = ["--raw", "--ignore-eos", "--temp", "1", "--seed", "3", "--max-kv-size", "64"]


def generate(*arguments: str, max_blocks: int | None = None) -> "subprocess.Popen[str]":
    """It can write at most `max_blocks` of 512 bytes to a file."""
    command = [sys.executable, "-m", "mlxchat", "generate", *arguments]
    if max_blocks is not None:
        command = ["sh", "-c", f'ulimit -f {max_blocks}; exec "$@"', "sh", *command]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str]:
    # However long it takes, within the test's own limit: other tests run at the same time.
    _, stderr = process.communicate()
    assert "Traceback" not in stderr
    return process.returncode, stderr


def generate_here(*arguments: str) -> tuple[int, str]:
    """Like `finish(generate(…))`, in this process."""
    done = run_in_process("generate", *arguments)
    return done.returncode, done.stderr


@cache
def uninterrupted(*begin: str) -> bytes:
    """The output of an undisturbed run; the same for all tests that begin the same way."""
    done = run_in_process("generate", "--json", *begin, TEXT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["text"].encode()


class Night:
    """A run with checkpoints that is started, interrupted and resumed, and one that never is."""

    def __init__(self, model: Path, directory: Path, tokens: int, *options: str) -> None:
        self.directory = directory
        self.begin = [*ENDLESS, "-m", str(model), "-n", str(tokens), *options]
        self.checkpointed = [
            *("--checkpoint", str(directory), "--checkpoint-every", "50"),
            *self.begin,
            TEXT,
        ]
        self.resumed = ["--resume", str(directory)]

    def run_to_end(self) -> tuple[int, str]:
        """Start or resume it in this process, until it ends."""
        return generate_here(*self._arguments())

    def start(self, **how: Any) -> "subprocess.Popen[str]":
        return generate(*self._arguments(), **how)

    def _arguments(self) -> list[str]:
        begun = (self.directory / "run.json").exists()
        return self.resumed if begun else self.checkpointed

    def expected(self) -> bytes:
        return uninterrupted(*self.begin)

    def written(self) -> bytes:
        return (self.directory / "output.txt").read_bytes()

    def grows_to(self, size_bytes: int) -> None:
        deadline = time.monotonic() + 60
        path = self.directory / "output.txt"
        while not path.exists() or path.stat().st_size < size_bytes:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def ends(self) -> None:
        done = run_in_process("generate", *self._arguments())
        assert done.returncode == 0, done.stderr
        known = r"(.*(has already ended|the text begins again).*\n)?"
        assert re.fullmatch(known, done.stderr)
        assert json.loads((self.directory / "run.json").read_text())["ended"] == "length"


@pytest.fixture
def night(tiny_model: Path, tmp_path: Path) -> Callable[..., Night]:
    def make(tokens: int = 600, *options: str) -> Night:
        return Night(tiny_model, tmp_path / "night", tokens, *options)

    return make


def kill_at_random_moments(night: Night, times: int, chance: random.Random) -> None:
    """Some kills come during start-up, the others during generation."""
    for _ in range(times):
        process = night.start()
        try:
            process.wait(chance.choice([chance.uniform(0, 1.5), chance.uniform(1, 2.5)]))
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)


def test_a_run_killed_again_and_again_writes_the_same_text(night: Callable[..., Night]) -> None:
    run = night(600, "--dry-multiplier", "0.8")
    kill_at_random_moments(run, 3, random.Random(1))
    run.ends()
    assert run.written() == run.expected()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_killed_at_fifty_random_moments_writes_the_same_text(
    night: Callable[..., Night],
) -> None:
    run = night(60_000)
    kill_at_random_moments(run, 50, random.Random(2))
    run.ends()
    assert run.written() == run.expected()


def test_a_run_killed_during_prefill_resumes_it(
    tiny_model: Path, tmp_path: Path, night: Callable[..., Night]
) -> None:
    """Reading a prompt can take a night, so there are checkpoints during prefill too."""
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(TEXT * 100)
    run = night(20, "--prefill-step-size", "16", "-f", str(prompt))
    process = run.start()
    state = run.directory / "state.safetensors"
    while not state.exists():
        time.sleep(0.002)
    process.kill()
    process.communicate()
    code, stderr = generate_here(*run.resumed, "--stats")
    assert code == 0
    assert "generated 20 tokens" in stderr
    assert run.written() == run.expected()


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_a_run_that_can_be_resumed(
    number: int, status: int, night: Callable[..., Night]
) -> None:
    run = night(600)
    process = run.start()
    run.grows_to(200)
    process.send_signal(number)
    assert finish(process) == (status, "")
    before = run.written()
    run.ends()
    assert run.written().startswith(before)
    assert run.written() == run.expected()


def test_an_ignored_hangup_is_ignored(night: Callable[..., Night]) -> None:
    """As under `nohup`."""
    run = night(400)
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = run.start()
    finally:
        signal.signal(signal.SIGHUP, previous)
    run.grows_to(100)
    process.send_signal(signal.SIGHUP)
    assert finish(process) == (0, "")


def test_a_run_ends_on_time_and_continues_the_next_night(
    night: Callable[..., Night], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time, it loaded the model and stopped, without a hint."""
    run = night(500)
    assert generate_here("--for", "0.2s", *run.checkpointed) == (0, "")
    first = run.written()
    # Its time is up: it does not even load the model unless it gets more.
    with monkeypatch.context() as patch:
        patch.setattr("mlxchat.app.begin.open_model", None)
        code, stderr = run.run_to_end()
    assert code == 0
    assert re.fullmatch(
        rf"mlxchat: the run in {run.directory} was to end at [-0-9]+ [0-9:]+: continue it with a "
        "new --until or --for\n",
        stderr,
    )
    code, _ = generate_here(*run.resumed, "--for", "1h")
    assert code == 0
    assert run.written().startswith(first)
    assert run.written() == run.expected()


def test_a_full_disk_ends_the_run_and_keeps_what_was_saved(
    night: Callable[..., Night],
) -> None:
    """Checkpoints are larger than this text, so they fail first, and the run continues."""
    run = night(1250)
    code, stderr = finish(run.start(max_blocks=4))
    assert code == 1
    assert re.search("cannot write a checkpoint .*; --resume would begin again\n", stderr)
    assert stderr.endswith("output.txt: File too large\n")
    before = run.written()
    run.ends()
    assert run.written().startswith(before)


def test_two_processes_cannot_share_a_checkpoint(night: Callable[..., Night]) -> None:
    run = night(-1)
    process = run.start()
    run.grows_to(10)
    code, stderr = generate_here(*run.resumed)
    assert code == 1
    assert f"is open in process {process.pid}" in stderr
    process.kill()
    process.communicate()


@pytest.fixture
def monotonous(tmp_path: Path) -> list[str]:
    """Options of a model that finds all tokens equally likely: greedily, it repeats the first."""
    model = write_tiny_model(tmp_path / "monotonous")
    weights: Any = mx.load(str(model / "model.safetensors"))
    weights["lm_head.weight"] = mx.zeros_like(weights["lm_head.weight"])
    mx.save_safetensors(str(model / "model.safetensors"), weights, {"format": "mlx"})
    return ["-m", str(model), "--raw", "--temp", "0", "--max-kv-size", "64"]


def test_an_answer_that_repeats_itself_is_stopped(monotonous: list[str], tmp_path: Path) -> None:
    """A string without a maximum length never ended."""
    out = tmp_path / "out"
    code, stderr = generate_here("-o", str(out), "--regex", "[ab]*c", *monotonous, TEXT)
    assert code == 4
    assert "the text repeats itself at token " in stderr
    assert stderr.endswith("the answer is not complete (finish reason: loop)\n")
    assert set(out.read_text().rstrip("\n")) == {"a"}


def test_plain_text_that_repeats_itself_is_stopped(monotonous: list[str], tmp_path: Path) -> None:
    """It was only reported, and went on until something else ended it."""
    out = tmp_path / "out.json"
    code, stderr = generate_here("--json", "-n", "900", "-o", str(out), *monotonous, TEXT)
    assert code == 3
    assert "earlier ones; stopped (--on-loop warn continues); --dry-multiplier" in stderr
    assert json.loads(out.read_text().splitlines()[-1])["finish_reason"] == "loop"
    warned = generate_here(
        "--on-loop", "warn", "-n", "700", "-o", str(tmp_path / "w"), *monotonous, TEXT
    )
    assert (warned[0], warned[1].count("the text repeats itself")) == (0, 1)


def test_no_checkpoint_is_overwritten(
    tiny_model: Path, tmp_path: Path, run_mlxchat: RunMlxchat
) -> None:
    directory = tmp_path / "night"
    arguments = ["generate", "-m", str(tiny_model), "-n", "5", "--checkpoint", str(directory), "x"]
    assert run_mlxchat(*arguments).returncode == 0
    again = run_mlxchat(*arguments)
    assert again.returncode == 2
    assert f"continue it with --resume {directory}" in again.stderr
    nowhere = run_mlxchat("generate", "--resume", str(tmp_path / "nowhere"))
    assert (nowhere.returncode, list(tmp_path.iterdir())) == (2, [directory])
    assert "no checkpoint in " in nowhere.stderr
    sampled = run_mlxchat("generate", "--resume", str(directory), "--temp", "1")
    assert (sampled.returncode, "omit --temp" in sampled.stderr) == (2, True)


def test_the_example_script_continues_after_a_crash(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(__file__).parents[1] / "scripts" / "overnight.sh"
    directory = tmp_path / "night"
    monkeypatch.setenv("MLXCHAT", f"{sys.executable} -m mlxchat")
    monkeypatch.setenv("MLXCHAT_PAUSE", "0")
    arguments = [*ENDLESS, "-m", str(tiny_model), "--checkpoint-every", "50"]
    process = subprocess.Popen(
        ["sh", str(script), str(directory), *arguments, "-n", "500", TEXT],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    state = directory / "state.safetensors"
    while not state.exists():
        time.sleep(0.01)
    (child,) = psutil.Process(process.pid).children()
    child.kill()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "exited with status 137; continuing from the latest checkpoint" in stderr
    whole = uninterrupted(*arguments, "-n", "500")
    assert (directory / "output.txt").read_bytes() == whole
