"""Prefill steps that take too long become shorter, and nothing else changes."""

import os
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from mlxchat.cache.build import make_cache
from mlxchat.engine import prefill as prefilling
from mlxchat.engine.prefill import Pace, first_step, prefill
from tests.conftest import build_random_model

PROMPT = np.random.default_rng(0).integers(0, 256, 3000).astype(np.int32)


class SlowDevice:
    """A network with its own clock: a step takes `latency_s` plus `token_s` per token."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, latency_s: float, token_s: float) -> None:
        self.network = build_random_model()
        self.steps: list[int] = []
        self.latency_s, self.token_s = latency_s, token_s
        self._now_s = 0.0
        monkeypatch.setattr(prefilling.time, "perf_counter", lambda: self._now_s)
        # On one core, a step is a single call.
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(1), raising=False)

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        self.steps.append(tokens.shape[1])
        self._now_s += self.latency_s + self.token_s * tokens.shape[1]
        return self.network(tokens, cache=cache)

    def read(self, pace: Pace, tokens: int) -> list[int]:
        """The sizes of the steps in which `tokens` tokens are read."""
        self.steps.clear()
        network: Any = self
        cache = make_cache(self.network)
        assert prefill(network, cache, PROMPT[:tokens], step_size=512, pace=pace) == tokens
        return list(self.steps)


def test_steps_become_shorter_and_longer_until_they_take_about_two_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step of 512 tokens could take four minutes, during which only `kill -9` had any effect."""
    device, pace = SlowDevice(monkeypatch, 0.01, 0.004), Pace(512)
    assert device.read(pace, 1000) == [512, 488]
    device.token_s = 0.05
    assert device.read(pace, 650) == [512, 32, 32, 32, 32, 10]
    # And longer again if they turn out quick.
    device.token_s = 0.001
    assert max(device.read(pace, 3_000)) == 512


def test_a_short_prompt_does_not_predict_the_time_of_a_full_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU, twenty tokens take as long as one."""
    device, pace = SlowDevice(monkeypatch, 0.5, 0.002), Pace(512)
    assert device.read(pace, 20) == [20]
    assert device.read(pace, 1024) == [512, 512]


def test_only_possibly_slow_networks_begin_with_a_shorter_step() -> None:
    class Weights(nn.Module):
        def __init__(self, number: int, dtype: mx.Dtype) -> None:
            super().__init__()
            self.weight = mx.zeros((number,), dtype)

    assert first_step(build_random_model()) >= 512
    assert 16 <= first_step(Weights(135_000_000, mx.float32)) <= 512
    assert first_step(Weights(135_000_000, mx.bfloat16)) == 1
    assert first_step(Weights(17_000_000, mx.uint32)) == 1
