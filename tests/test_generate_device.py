"""A device that fails at each evaluation of `mlxchat generate`, one after another."""

from pathlib import Path
from typing import Any

import pytest

from mlxchat.app.run import Run
from tests.failing_device import FailingDevice, failing_evaluations
from tests.in_process import run_in_process

TEXT = "The sea was calm, and nothing moved. "
ENDLESS = ("--raw", "--ignore-eos", "--temp", "1", "--seed", "3", "--max-kv-size", "64")


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
        resumed = run_in_process("generate", "--resume", str(night))
        assert (resumed.returncode, resumed.stderr) == (0, "")
        assert (night / "output.txt").read_text() == whole
