"""How many tokens a prefill step has, so that no step keeps the user waiting.

Nothing can be shown, stopped or saved in the middle of a step. On a slow device one of 512 tokens
takes minutes, so steps are made shorter until they take about two seconds.
"""

from collections import deque
from collections.abc import Sequence

import mlx.core as mx
from mlx import nn

from mlxchat import platform
from mlxchat.models.skeleton import named_parameters

TARGET_S = 2.0

# A step may take this long before the next ones are shorter. Well above the target, so that the
# same run on the same machine nearly always takes the same steps.
TOO_LONG_S = 2.5

# What the first step is sized for, in floating-point operations a second; timing takes over from
# there. A GPU: about an M2 Pro. A CPU in float32: half of what two old cores reach. In any other
# form a CPU may take seconds for a single token: 0.07e9 was measured for 4 bits in float16.
GPU_FLOPS = 5e12
CPU_FLOAT32_FLOPS = 20e9
CPU_OTHER_FLOPS = 0.1e9

# On a GPU, where ml-explore/mlx issue 3856 wants multiples of 32.
LEAST_FIRST_ON_GPU = 32


class Pace:
    """Sizes of prefill steps: powers of two, or the largest step that the caller allows.

    `first` is the size to begin with. A step that takes too long makes the next ones shorter, and
    quick ones make them longer again. `planned` sizes come before all others, to read a prompt in
    the very steps that it was read in once.
    """

    def __init__(self, first: int, planned: Sequence[int] = ()) -> None:
        self._size = first
        self._planned = deque(planned)

    @classmethod
    def of(cls, network: nn.Module, planned: Sequence[int] = ()) -> "Pace":
        """Begin with what this device should do in the target time, from the network's size."""
        return cls(first_step(network), planned)

    def size(self, most: int, done: int) -> int:
        """Tokens in the next step, `most` at most, after `done` of this prompt.

        A step ends at a multiple of its size. So wherever sizes change, steps still end where the
        pages of the prefix cache do.
        """
        if self._planned:
            return self._planned[0]
        size = min(most, self._size)
        return size - done % size

    def took(self, tokens: int, seconds: float) -> None:
        """Report a step that has been computed."""
        if self._planned:
            self._planned.popleft()
        affordable = _power_of_two(TARGET_S * tokens / max(seconds, 1e-9))
        # A short step says little of how long a full one takes, except that it is no longer for
        # each token.
        longer = affordable > self._size
        if seconds > TOO_LONG_S or longer:
            self._size = affordable


def first_step(network: nn.Module) -> int:
    """A power of two: tokens that this device should prefill in the target time."""
    on_gpu = platform.on_gpu()
    affordable = TARGET_S * _flops(network, on_gpu) / max(2 * _weights(network), 1)
    return max(_power_of_two(affordable), LEAST_FIRST_ON_GPU if on_gpu else 1)


def _flops(network: nn.Module, on_gpu: bool) -> float:
    if on_gpu:
        return GPU_FLOPS
    dtypes = {array.dtype for _, array in named_parameters(network)}
    quick = dtypes == {mx.float32} and platform.has_fast_blas()
    return CPU_FLOAT32_FLOPS if quick else CPU_OTHER_FLOPS


def _weights(network: nn.Module) -> int:
    """About how many weights a token is multiplied with; packed ones are taken for 4 bits."""
    return sum(
        array.size * (8 if array.dtype == mx.uint32 else 1)
        for _, array in named_parameters(network)
    )


def _power_of_two(number: float) -> int:
    """The largest that is not above `number`; 1 at the least."""
    return 1 << max(int(number).bit_length() - 1, 0)


def run_lengths(sizes: Sequence[int]) -> list[list[int]]:
    """`[size, count]` for each stretch of equal sizes, fit for JSON."""
    stretches: list[list[int]] = []
    for size in sizes:
        if stretches and stretches[-1][0] == size:
            stretches[-1][1] += 1
        else:
            stretches.append([size, 1])
    return stretches


def from_run_lengths(stretches: Sequence[Sequence[int]]) -> list[int]:
    """The sizes that `run_lengths` was given. Raises ValueError or TypeError for anything else."""
    return [int(size) for size, count in stretches for _ in range(int(count))]
