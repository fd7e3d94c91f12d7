"""Overnight runs of `mlxchat generate`: when they end, and what is said then, also if the device
fails. That nothing is lost is in `test_runs` and `smoke/test_kills`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mlxchat.app.run import Run
from scripts.tiny_model import write_tiny_model
from tests.failing_device import FailingDevice, failing_evaluations
from tests.in_process import run_in_process, run_quietly
from tests.test_half_precision import change

TEXT = "The sea was calm, and nothing moved. "
ENDLESS = ["--raw", "--ignore-eos", "--temp", "1", "--seed", "3", "--max-kv-size", "64"]


def generate_here(*arguments: str) -> tuple[int, str]:
    """The status, and what was said."""
    done = run_in_process("generate", *arguments)
    return done.returncode, done.stderr


def test_a_run_ends_on_time_and_continues_the_next_night(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time, it loaded the model and stopped, without a hint."""
    night = tmp_path / "night"
    resumed = ["--resume", str(night)]
    begun = [*ENDLESS, "-m", str(tiny_model), "-n", "300", "--checkpoint", str(night), TEXT]
    assert generate_here("--for", "0.1s", *begun) == (0, "")
    first = (night / "output.txt").read_bytes()
    # Its time is up: it does not even load the model unless it gets more.
    with monkeypatch.context() as patch:
        patch.setattr("mlxchat.app.begin.open_model", None)
        code, stderr = generate_here(*resumed)
    assert code == 0
    assert re.fullmatch(
        rf"mlxchat: the run in {night} was to end at [-0-9]+ [0-9:]+: continue it with a "
        "new --until or --for\n",
        stderr,
    )
    assert generate_here(*resumed, "--for", "1h") == (0, "")
    assert (night / "output.txt").read_bytes().startswith(first)
    assert json.loads((night / "run.json").read_text())["ended"] == "length"


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--regex", "[ab]*c"], 4, "the answer is not complete (finish reason: loop)"),
        (["-n", "900"], 3, "stopped (--on-loop warn continues); --dry-multiplier"),
        (["-n", "600", "--on-loop", "warn"], 0, "the text repeats itself at token "),
    ],
)
def test_a_text_that_repeats_itself_is_stopped_unless_only_a_warning_is_wanted(
    options: list[str], status: int, said: str, tmp_path: Path
) -> None:
    """A string without a maximum length never ended: greedily, this model repeats a token."""
    out, model = tmp_path / "out", write_tiny_model(tmp_path / "monotonous")
    change(model, lambda name, array: array * 0 if name == "lm_head.weight" else array)
    options = [*options, "--raw", "--temp", "0", "--max-kv-size", "64", "--json", "-o", str(out)]
    code, stderr = generate_here("-m", str(model), *options, TEXT)
    assert (code, said in stderr, stderr.count("the text repeats itself")) == (status, True, 1)
    ended = json.loads(out.read_text().splitlines()[-1])["finish_reason"]
    assert ended == ("loop" if status else "length")


def test_no_checkpoint_is_overwritten(tiny_model: Path, tmp_path: Path) -> None:
    night = tmp_path / "night"
    begun = ["-m", str(tiny_model), "-n", "5", "--checkpoint", str(night), "x"]
    assert generate_here(*begun)[0] == 0
    for arguments, said in (
        (begun, f"continue it with --resume {night}"),
        (["--resume", str(tmp_path / "nowhere")], "no checkpoint in "),
        (["--resume", str(night), "--temp", "1"], "omit --temp"),
    ):
        code, stderr = generate_here(*arguments)
        assert (code, said in stderr) == (2, True)
    assert list(tmp_path.iterdir()) == [night]


def test_after_any_failed_evaluation_the_run_can_be_resumed(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device, first, tokens = FailingDevice(monkeypatch), 0, Run.tokens

    def begin(*given: Any, **how: Any) -> Any:
        """The model is loaded, and the prompt encoded."""
        device.breaks_at(first, min(first, 1))
        return tokens(*given, **how)

    monkeypatch.setattr(Run, "tokens", begin)
    generate = ("generate", "-m", str(tiny_model), *ENDLESS, "-n", "4", "--prefill-step-size", "16")
    whole = run_in_process(*generate, TEXT).stdout.removesuffix("\n")
    for number in failing_evaluations():
        first, night = number, tmp_path / f"night{number}"
        saving = ("--checkpoint", str(night), "--checkpoint-every", "2")
        done = run_in_process(*generate, *saving, TEXT)
        if not device.has_failed:
            assert number > 10
            break
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert done.stderr.startswith("mlxchat: error: out of memory: ")
        first = 0
        run_quietly("generate", "--resume", str(night))
        assert (night / "output.txt").read_text() == whole
