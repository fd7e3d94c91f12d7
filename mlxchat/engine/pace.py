"""The size of prefill steps, such that no step keeps the user waiting.

Nothing can be shown, stopped or saved during a step. On a slow device, 512 tokens take minutes, so
steps are shortened until they take about two seconds.
"""

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.models.skeleton import named_parameters

TARGET_S = 2.0

# Steps are shortened only if one takes longer than this, well above the target, so that the same
# run on the same machine nearly always takes the same steps.
TOO_LONG_S = 2.5

# Floating-point operations per second assumed for the first step; measured times replace them. GPU:
# about an M2 Pro. CPU in float32: half of what two old cores reach. In any other form, a CPU may
# take seconds for one token: 0.07e9 was measured for 4 bits in float16.
GPU_FLOPS = 5e12
CPU_FLOAT32_FLOPS = 20e9
CPU_OTHER_FLOPS = 0.1e9

# GPU steps should be multiples of 32: see ml-explore/mlx issue 3856.
MIN_FIRST_ON_GPU = 32


class Pace:
    """Sizes of prefill steps: powers of two, or the largest step that the caller allows.

    `first` is the initial size. A step that takes too long makes the following ones shorter; quick
    ones make them longer again.
    """

    def __init__(self, first: int) -> None:
        self._size = first

    def size(self, max_tokens: int, done: int) -> int:
        """Tokens in the next step, at most `max_tokens`, after `done` tokens of this prompt.

        Steps end at multiples of their size, and so still at the page boundaries of the prefix
        cache after the size has changed.
        """
        size = min(max_tokens, self._size)
        return size - done % size

    def took(self, tokens: int, seconds: float) -> None:
        """Report a completed step."""
        affordable = _power_of_two(TARGET_S * tokens / max(seconds, 1e-9))
        # A short step does not predict the time of a full one, but a full one takes no longer per
        # token.
        longer = affordable > self._size
        if seconds > TOO_LONG_S or longer:
            self._size = affordable


def first_step(network: nn.Module) -> int:
    """Tokens, a power of two, that this device should prefill in the target time."""
    on_gpu = platform.on_gpu()
    affordable = TARGET_S * _flops(network, on_gpu) / max(2 * _weights(network), 1)
    return max(_power_of_two(affordable), MIN_FIRST_ON_GPU if on_gpu else 1)


def _flops(network: nn.Module, on_gpu: bool) -> float:
    if on_gpu:
        return GPU_FLOPS
    dtypes = {array.dtype for _, array in named_parameters(network)}
    quick = dtypes == {mx.float32} and platform.has_fast_blas()
    return CPU_FLOAT32_FLOPS if quick else CPU_OTHER_FLOPS


def _weights(network: nn.Module) -> int:
    """Approximate number of weights per token; packed ones count as 4 bits."""
    return sum(
        array.size * (8 if array.dtype == mx.uint32 else 1)
        for _, array in named_parameters(network)
    )


def _power_of_two(number: float) -> int:
    """The largest power of two up to `number`; at least 1."""
    return 1 << max(int(number).bit_length() - 1, 0)
