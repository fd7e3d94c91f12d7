"""A device that fails at each evaluation of `mlxchat generate`, one after another."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxchat.app.checkpoints import Checkpointer
from mlxchat.app.run import Run
from mlxchat.engine import generate as generating
from tests.failing_device import FailingDevice, failing_evaluations
from tests.in_process import run_in_process
from tests.json_events import events_of

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


def test_after_a_failed_evaluation_the_text_so_far_is_written(
    tiny_model: Path, device: FailingDevice, as_it_begins: Any
) -> None:
    whole = generate(tiny_model).stdout
    for number in failing_evaluations():
        as_it_begins(lambda: device.breaks_at(number))  # noqa: B023  (called before it changes)
        done = generate(tiny_model)
        if not device.has_failed:
            assert (done.stdout, number > 8) == (whole, True)
            break
        check_error(done)
        assert whole.startswith(done.stdout.removesuffix("\n"))


@pytest.mark.parametrize(("number", "tokens_before"), [(1, 0), (8, 1)])
def test_the_last_event_reports_the_device_failure(
    number: int, tokens_before: int, tiny_model: Path, device: FailingDevice, as_it_begins: Any
) -> None:
    """The events just stopped, as after a kill."""
    as_it_begins(lambda: device.breaks_at(number))
    done = generate(tiny_model, "--json")
    check_error(done)
    start, *tokens, last = events_of(done.stdout)
    assert (start["event"], last["event"], last["finish_reason"]) == ("start", "done", "error")
    assert done.stderr == f"mlxchat: error: {last['error']}\n"
    assert last["text"] == "".join(token["text"] for token in tokens)
    assert last["generated_tokens"] == len(tokens) == tokens_before


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


def test_the_previous_checkpoint_stays_if_the_last_one_fails(
    tiny_model: Path, device: FailingDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It had been asked to stop; because its state could not be saved, its text was cut short."""
    night = tmp_path / "night"
    leave, seen = Checkpointer.leave, list[Any]()

    def see(_: Any, token: Any) -> str | None:
        seen.extend([] if token is None else [token])
        return "interrupted" if len(seen) >= 4 else None

    def broken(saver: Checkpointer, *arguments: Any) -> Any:
        device.breaks_at(1, 1000)
        return leave(saver, *arguments)

    monkeypatch.setattr(generating, "first_reason", see)
    monkeypatch.setattr(Checkpointer, "leave", broken)
    done = generate(tiny_model, "--checkpoint", str(night), "--checkpoint-every", "2")
    assert done.returncode == 0
    assert f"cannot write a checkpoint to {night}: out of memory: " in done.stderr
    assert done.stderr.endswith("; the previous one stays valid\n")
    assert json.loads((night / "run.json").read_text())["ended"] is None
