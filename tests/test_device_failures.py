"""A device that fails halfway: one line is printed, and everything up to there is kept."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxchat.chat.conversation import Conversation
from mlxchat.engine.reply import Token
from mlxchat.errors import DeviceError, ModelBroken
from mlxchat.failures import device_failures
from mlxchat.models.model import Model
from mlxchat.models.weights import fitting
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings
from tests.test_conversation import make_model

FULL = (
    "[METAL] Command buffer execution failed: Insufficient Memory "
    "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)."
)
TIMED_OUT = (
    "[METAL] Command buffer execution failed: Caused GPU Timeout Error "
    "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
)


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
