"""A prefill step is computed in pieces on two streams, and a rank waits for both of its own; steps
that take too long become shorter, and nothing else changes."""

import os
from itertools import cycle
from typing import Any
from unittest.mock import Mock

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from mlxchat import platform
from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache, recurrent_states, windows
from mlxchat.distributed import Ranks
from mlxchat.engine import prefill as prefilling
from mlxchat.engine.prefill import Pace, compute_step, first_step, prefill
from scripts.families import build_family
from tests.conftest import build_random_model

IDS = np.random.default_rng(0).integers(0, 256, 700).astype(np.int32)
PROMPT = np.random.default_rng(0).integers(0, 256, 3000).astype(np.int32)


def two_streams() -> tuple[Any, ...]:
    return mx.default_stream(mx.cpu), platform._second_cpu_stream()


def read(network: Any, cache: Cache, streams: tuple[Any, ...], step_size: int = 512) -> None:
    for first in range(0, len(IDS), step_size):
        compute_step(network, cache, IDS[first : first + step_size], streams)


def arrays_of(cache: Cache) -> list[mx.array]:
    used = [each for each in windows(cache) if not each.empty()]
    held = [array for each in used for array in each.keys_and_values()]
    return held + [x for each in recurrent_states(cache) for x in each.cache if x is not None]


@pytest.mark.parametrize(
    ("streams", "window", "step_size", "sizes"),
    [
        (2, None, 512, [128, 128, 128, 128, 94, 94]),
        (1, None, 512, [512, 188]),
        # Too short to be worth it.
        (2, None, 63, [63] * 11 + [7]),
        # What a page or block copies after a step would have been evicted by its later pieces.
        (2, 200, 256, [256, 256, 94, 94]),
    ],
)
def test_a_step_is_computed_in_pieces_two_at_a_time_if_the_window_has_room(
    streams: int, window: int | None, step_size: int, sizes: list[int]
) -> None:
    model = build_random_model()
    network, cache = Mock(wraps=model), make_cache(model, window)
    read(network, cache, two_streams()[:streams], step_size)
    assert [call.args[0].shape[1] for call in network.call_args_list] == sizes
    assert all(window.size() >= 188 for window in windows(cache))


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("family", ["qwen3_next", "deepseek_v3"])
def test_two_streams_compute_the_same_bits_as_one(family: str, window: int | None) -> None:
    """A piece that did not wait for the previous one's keys or state would differ."""
    network = build_family(family)
    together, in_turn = make_cache(network, window), make_cache(network, window)
    read(network, together, two_streams(), step_size=256)
    read(network, in_turn, two_streams()[:1] * 2, step_size=256)
    for ours, theirs in zip(arrays_of(together), arrays_of(in_turn), strict=True):
        assert mx.array_equal(ours, theirs)


@pytest.mark.parametrize("step_size", [256, 100])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next", "deepseek_v3"])
def test_the_speed_of_the_machine_changes_no_logits(family: str, step_size: int) -> None:
    """Kept tokens that moved up between the parts of a step would be nearer to the later ones."""
    network, found = build_family(family), list[mx.array]()
    for sizes in map(cycle, ([256], [64], [32, 8, 128], [1, 2])):
        pace = Pace(1, lambda _, sizes=sizes: next(sizes))
        cache = make_cache(network, 50, 4)
        # Stopped after five steps, and read on by another process.
        stops, how = iter([False] * 5), {"step_size": step_size, "pace": pace}
        done = prefill(network, cache, IDS, should_stop=lambda left=stops: next(left, True), **how)
        prefill(network, cache, IDS[done:], after=done, **how)
        assert max(each.gap for each in windows(cache)) < step_size
        found.append(network(mx.array([[7]]), cache=cache))
    assert all(mx.allclose(each, found[0], atol=1e-5) for each in found)


def test_ranks_and_gpus_compute_on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that sent their messages in different orders would wait for each other forever."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2), raising=False)
    monkeypatch.setattr(platform.sys, "platform", "linux")
    for on_gpu, ranks, expected in ((False, {}, 2), (True, {}, 1), (False, {"MLX_RANK": "0"}, 1)):
        monkeypatch.setattr(platform, "on_gpu", lambda on_gpu=on_gpu: on_gpu)
        for name, value in ranks.items():
            monkeypatch.setenv(name, value)
        with platform.prefill_streams() as streams:
            assert len(streams) == expected


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[mx.Stream | None]:
    """The streams waited for; None is the default one, a GPU's on a Mac."""
    streams: list[mx.Stream | None] = []
    monkeypatch.setattr(mx, "synchronize", lambda stream=None: streams.append(stream))
    return streams


def test_a_rank_waits_for_its_messages_before_it_stops(waited: list[mx.Stream | None]) -> None:
    """`mx.synchronize()` waits only for the GPU's stream: the last message could be lost."""
    Ranks(mx.distributed.init()).stop()
    assert waited == [None, mx.default_stream(mx.cpu)]


def test_the_wired_limit_is_changed_only_after_all_computation(
    waited: list[mx.Stream | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    monkeypatch.setattr(platform, "recommended_working_set_bytes", lambda: 1000)
    monkeypatch.setattr(mx, "set_wired_limit", lambda limit: limits.append(limit) or 7)
    with platform.wired_limit():
        assert waited == []
    assert waited == [None, mx.default_stream(mx.cpu)]
    assert limits == [1000, 7]


# The time of a step


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


def test_a_short_prompt_does_not_predict_a_full_step(monkeypatch: pytest.MonkeyPatch) -> None:
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
