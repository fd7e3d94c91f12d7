"""Turns MLX's device and memory failures into errors of our own.

Any other RuntimeError is a bug, or another library's, and passes through unchanged.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from mlxchat.errors import DeviceError

# How MLX's device errors begin, and what its allocators' errors contain.
# Source: mlx/backend/metal/eval.cpp and allocator.cpp, mlx/allocator.h of ml-explore/mlx.
FAILED_COMMANDS = "[METAL] Command buffer execution failed"
OUT_OF_MEMORY = ("[metal::malloc]", "[malloc", "Unable to allocate", "bad_alloc")
# Metal's own text inside a command buffer error.
METAL_OUT_OF_MEMORY = ("Insufficient Memory", "OutOfMemory")


@contextmanager
def device_failures() -> Iterator[None]:
    """Raise DeviceError if the device fails or memory runs out in the body."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        message = _explanation(error)
        if message is None:
            raise
        raise DeviceError(message) from error


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
