"""Turns MLX's device and memory failures, and those of a model's code, into errors of our own.

Anything else is a bug, or another library's error, and passes through unchanged.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlxchat.errors import DeviceError, MlxchatError

# How MLX's device errors begin, and what its allocators' errors contain.
# Source: mlx/backend/metal/eval.cpp and allocator.cpp, mlx/allocator.h of ml-explore/mlx.
FAILED_COMMANDS = "[METAL] Command buffer execution failed"
OUT_OF_MEMORY = ("[metal::malloc]", "[malloc", "Unable to allocate", "bad_alloc")
# Where our own files are.
OURS = f"{Path(__file__).parent}/"
# Metal's own text inside a command buffer error.
METAL_OUT_OF_MEMORY = ("Insufficient Memory", "OutOfMemory")


@contextmanager
def device_failures(*, of_model: bool = True) -> Iterator[None]:
    """Raise DeviceError if the device fails or memory runs out in the body, or if the model's code
    fails and `of_model`."""
    try:
        yield
    except MlxchatError:
        raise
    except Exception as error:
        message = _explanation(error) if isinstance(error, RuntimeError | MemoryError) else None
        if message is None and of_model and _is_of_model(error):
            message = f"the model's code failed: {first_line(error)}"
        if message is None:
            raise
        raise DeviceError(message) from error


def _is_of_model(error: Exception) -> bool:
    """Whether a module of mlx-lm's, or what it calls other than our caches, raised it."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any("/mlx_lm/models/" in file for file in files) and not files[-1].startswith(OURS)


def _explanation(error: RuntimeError | MemoryError) -> str | None:
    """A message that says what happened and what to do; None if the device is not to blame."""
    detail = first_line(error)
    failed = detail.startswith(FAILED_COMMANDS)
    words = METAL_OUT_OF_MEMORY if failed else OUT_OF_MEMORY
    if isinstance(error, MemoryError) or any(each in detail for each in words):
        return (
            "out of memory: use a smaller window, a smaller or more heavily quantized model, or "
            f"close other programs ({detail})"
        )
    if failed:
        return f"the GPU failed: try again, with a smaller prefill step if it timed out ({detail})"
    return None


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
