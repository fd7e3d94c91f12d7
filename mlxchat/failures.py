"""What MLX raises when the device or the memory gives out, as an error of ours.

Every other RuntimeError is a bug, or somebody else's to explain, and stays what it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from mlxchat.errors import DeviceError

# How MLX's errors of the device begin, or what is in those of its allocators.
# Source: mlx/backend/metal/eval.cpp and allocator.cpp, mlx/allocator.h of ml-explore/mlx.
FAILED_COMMANDS = "[METAL] Command buffer execution failed"
OUT_OF_MEMORY = ("[metal::malloc]", "[malloc", "Unable to allocate", "bad_alloc")
# Metal's own words, within its error of a command buffer.
METAL_OUT_OF_MEMORY = ("Insufficient Memory", "OutOfMemory")


@contextmanager
def device_failures() -> Iterator[None]:
    """Raise DeviceError if the device or the memory gives out in the body."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        message = _in_words(error)
        if message is None:
            raise
        raise DeviceError(message) from error


def _in_words(error: RuntimeError | MemoryError) -> str | None:
    """What happened and what to do, or None if the device is not to blame."""
    said = first_line(error)
    failed = said.startswith(FAILED_COMMANDS)
    words = METAL_OUT_OF_MEMORY if failed else OUT_OF_MEMORY
    if isinstance(error, MemoryError) or any(each in said for each in words):
        return (
            "memory ran out: choose a smaller window, a smaller or more strongly quantized model, "
            f"or close other programs ({said})"
        )
    if failed:
        return f"the GPU failed: try again, in smaller steps if it timed out ({said})"
    return None


def first_line(error: BaseException) -> str:
    """What a library's error says, without what follows; its kind if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
