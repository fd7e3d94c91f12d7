"""A device that fails at a chosen evaluation. Counts everything that makes MLX compute."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import mlx.core as mx
import pytest

from mlxchat.engine.sampling import Drawn
from tests.conftest import examples

FULL = (
    "[METAL] Command buffer execution failed: Insufficient Memory "
    "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)."
)


def failing_evaluations() -> Iterator[int]:
    """The evaluations to fail, one after another: all with `make test-all`, else every third."""
    return count(1, 1 if examples(1) > 1 else 3)


class FailingDevice:
    """Once `watched`, `times` evaluations fail, from number `first` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._first = self._after = 0
        for module, name in ((mx, "eval"), (mx, "async_eval"), (Drawn, "read")):
            monkeypatch.setattr(module, name, self._counting(getattr(module, name)))

    def breaks_at(self, first: int, times: int = 1) -> None:
        """Start counting; the first evaluation is number 1."""
        self.count, self._first, self._after = 0, first, first + times

    def repair(self) -> None:
        self.breaks_at(0, 0)

    @property
    def has_failed(self) -> bool:
        return self._first > 0 and self.count >= self._first

    def _counting(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            self.count += 1
            if self._first <= self.count < self._after:
                raise RuntimeError(FULL)
            return evaluate(*given)

        return call
