"""A device that fails halfway: one line is printed, and everything up to there is kept."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import mlxchat.cli as program
from mlxchat.chat.conversation import Conversation
from mlxchat.engine.reply import Token
from mlxchat.errors import DeviceError, ModelBroken
from mlxchat.failures import device_failures
from mlxchat.models.model import Model
from mlxchat.models.weights import fitting
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings
from mlxchat.terminal.run_generate import resume_run
from tests.test_conversation import check_in_step, make_model

FULL = (
    "[METAL] Command buffer execution failed: Insufficient Memory "
    "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)."
)
TIMED_OUT = (
    "[METAL] Command buffer execution failed: Caused GPU Timeout Error "
    "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
)


def fails_after(
    monkeypatch: pytest.MonkeyPatch, tokens: int, message: str = FULL
) -> Callable[[], None]:
    """Any llama's forward pass fails once its cache has been given this many tokens; returns a
    function that repairs the device."""
    from mlx_lm.models.llama import Model as Llama

    forward = Llama.__call__
    broken = True

    def call(self: Any, inputs: mx.array, cache: Any = None, **how: Any) -> mx.array:
        if broken and cache is not None and cache[0].total >= tokens:
            raise RuntimeError(message)
        return forward(self, inputs, cache=cache, **how)

    def repair() -> None:
        nonlocal broken
        broken = False

    monkeypatch.setattr(Llama, "__call__", call)
    return repair


@pytest.mark.parametrize(
    ("said", "begins"),
    [
        (FULL, "out of memory: use a smaller window, "),
        ("[metal::malloc] Attempting to allocate 9 bytes which is greater than", "out of memory"),
        ("[malloc_or_wait] Unable to allocate 9 bytes.", "out of memory"),
        ("std::bad_alloc", "out of memory"),
        (TIMED_OUT, "the GPU failed: try again"),
    ],
)
def test_a_device_error_of_mlx_becomes_one_line(said: str, begins: str) -> None:
    with pytest.raises(DeviceError) as caught, device_failures():
        raise RuntimeError(f"{said}\nand more")
    message = str(caught.value)
    assert message.startswith(begins)
    assert message.endswith(f"({said})")
    with pytest.raises(DeviceError, match="out of memory"), device_failures():
        raise MemoryError


@pytest.mark.parametrize("error", [RuntimeError("[ring] lost"), ValueError("std::bad_alloc")])
def test_other_errors_are_not_changed(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, device_failures():
        raise error
    assert caught.value is error


def test_a_failure_of_the_models_code_is_one_of_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loading checks shapes with two tokens; what fails only later ended in a traceback."""
    model = make_model()
    network: Any = model.network
    conversation = conversation_with(model)
    monkeypatch.setitem(network.model.norm, "weight", mx.ones((3,)))
    with pytest.raises(DeviceError, match=r"^the model's code failed: .*rms_norm.*"):
        said(conversation, "one")


def test_running_out_of_memory_while_loading_is_not_a_broken_model(tmp_path: Path) -> None:
    with pytest.raises(DeviceError), fitting(tmp_path):
        raise RuntimeError("[metal::malloc] Attempting to allocate 9 bytes")
    with pytest.raises(ModelBroken), fitting(tmp_path):
        raise RuntimeError("[broadcast_shapes] Shapes cannot be broadcast")


# generate


@pytest.fixture
def runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_model: Path
) -> Callable[..., tuple[int, str, str]]:
    """Runs `mlxchat generate` with the tiny model, in this process."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["mlxchat", "generate", "-m", str(tiny_model), *arguments])
            status = int(program._status())
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


ENDLESS = ["--raw", "--ignore-eos", "--temp", "1", "--seed", "3", "--max-kv-size", "64"]
TEXT = "The sea was calm, and nothing moved. "


def test_generate_keeps_the_text_so_far_and_reports_why_it_ended(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended in a traceback."""
    asked = [*ENDLESS, "-n", "60", TEXT]
    whole = runs(*asked)[1]
    fails_after(monkeypatch, len(TEXT) + 30)
    status, stdout, stderr = runs(*asked)
    assert status == 1
    assert len(stdout) > 20
    assert whole.startswith(stdout.removesuffix("\n"))
    assert stderr.startswith("mlxchat: error: out of memory: ")
    assert stderr.count("\n") == 1


def test_a_run_resumes_from_the_checkpoint_before_the_failure(
    runs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A checkpoint of the state after the failure would have been resumed as noise."""
    asked = [*ENDLESS, "-n", "120", "--checkpoint-every", "50", TEXT]
    assert runs("--checkpoint", str(tmp_path / "whole"), *asked)[0] == 0
    repair = fails_after(monkeypatch, len(TEXT) + 80)
    night = tmp_path / "night"
    status, _, stderr = runs("--checkpoint", str(night), *asked)
    assert status == 1
    assert "error: out of memory: " in stderr
    assert json.loads((night / "run.json").read_text())["ended"] is None
    repair()
    assert resume_run(str(night), {}) == 0
    whole = (tmp_path / "whole" / "output.txt").read_bytes()
    assert (night / "output.txt").read_bytes() == whole


# chat


def conversation_with(model: Model) -> Conversation:
    return Conversation(
        model,
        CacheSettings(320, keep=0, prefill_step_size=64),
        sampling=SamplingSettings(temp=1.0, seed=1),
        generation=GenerationSettings(max_tokens=20, ignore_eos=True),
    )


def said(conversation: Conversation, text: str) -> str:
    return "".join(each.text for each in conversation.say(text) if isinstance(each, Token))


def test_a_chat_keeps_the_turn_and_prefills_everything_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise all later turns would have seen what the failure left in the cache."""
    model = make_model()
    plain = conversation_with(model)
    said(plain, "one")
    held = len(plain.held_ids)
    conversation = conversation_with(model)
    repair = fails_after(monkeypatch, held + 30)
    said(conversation, "one")
    shown: list[str] = []
    with pytest.raises(DeviceError):
        shown.extend(each.text for each in conversation.say("two") if isinstance(each, Token))
    assert shown
    assert [turn.user for turn in conversation.turns] == ["one", "two"]
    assert conversation.turns[1].reply == "".join(shown)
    # Nothing left by the failure is saved in a snapshot or used again.
    assert len(conversation.ledger) == 0
    repair()
    said(conversation, "three")
    assert conversation.stats is not None
    assert conversation.stats.cached_tokens == 0
    check_in_step(conversation)
    fresh = conversation_with(model)
    fresh.resume(None, conversation.turns[:2])
    assert said(fresh, "three") == conversation.turns[2].reply


def test_a_failed_prompt_can_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = conversation_with(make_model())
    said(conversation, "one")
    repair = fails_after(monkeypatch, len(conversation.held_ids))
    with pytest.raises(DeviceError):
        said(conversation, "a longer question than before " * 5)
    assert conversation.turns[-1].reply == ""
    with pytest.raises(DeviceError):
        said(conversation, "another")
    repair()
    reply = [each for each in conversation.retry() if isinstance(each, Token)]
    assert len(reply) > 5
    check_in_step(conversation)


def test_undo_and_continue_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = conversation_with(make_model())
    said(conversation, "one")
    repair = fails_after(monkeypatch, len(conversation.held_ids) + 30)
    with pytest.raises(DeviceError):
        said(conversation, "two")
    repair()
    assert conversation.undo().user == "two"
    assert [each for each in conversation.continue_reply() if isinstance(each, Token)]
    check_in_step(conversation)
