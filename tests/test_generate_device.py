"""A device that fails at each evaluation of `mlxchat generate`, one after another."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxchat.app.run import Run
from tests.failing_device import FailingDevice, failing_evaluations
from tests.in_process import run_in_process

TEXT = "The sea was calm, and nothing moved. "
ENDLESS = ("--raw", "--ignore-eos", "--temp", "1", "--seed", "3", "--max-kv-size", "64")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FailingDevice:
    return FailingDevice(monkeypatch)


@pytest.fixture
def as_it_begins(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Calls a function once the model is loaded and the prompt encoded."""
    pieces = Run.tokens

    def do(act: Callable[[], None]) -> None:
        def call(*given: Any, **how: Any) -> Any:
            act()
            return pieces(*given, **how)

        monkeypatch.setattr(Run, "tokens", call)

    return do


def generate(model: Path, *arguments: str) -> Any:
    options = ("-n", "6", "--prefill-step-size", "16")
    return run_in_process("generate", "-m", str(model), *ENDLESS, *options, *arguments, TEXT)


def check_error(done: Any) -> None:
    assert done.returncode == 1
    assert done.stderr.startswith("mlxchat: error: out of memory: ")
    assert done.stderr.count("\n") == 1


def test_after_any_failed_evaluation_the_run_can_be_resumed(
    tiny_model: Path, device: FailingDevice, as_it_begins: Any, tmp_path: Path
) -> None:
    whole = generate(tiny_model).stdout.removesuffix("\n")
    for number in failing_evaluations():
        night = tmp_path / f"night{number}"
        as_it_begins(lambda: device.breaks_at(number))  # noqa: B023  (called before it changes)
        done = generate(tiny_model, "--checkpoint", str(night), "--checkpoint-every", "2")
        if not device.has_failed:
            assert number > 10
            break
        check_error(done)
        as_it_begins(device.repair)
        resumed = run_in_process("generate", "--resume", str(night))
        assert (resumed.returncode, resumed.stderr) == (0, "")
        assert (night / "output.txt").read_text() == whole
