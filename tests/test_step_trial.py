"""`prefill_step_size` auto finds the fastest of three sizes on the first steps of a long prompt."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from mlxchat import platform
from mlxchat.engine import pace
from mlxchat.engine.pace import Pace, affords
from mlxchat.engine.step_trial import StepTrial
from mlxchat.settings import CacheSettings
from tests.conftest import build_random_model

PROMPT = 16_384

Seconds = Callable[[int, int], float]
Affords = Callable[[int, int, float], bool]


def read(
    steady: Pace, seconds: Seconds, tokens: int = PROMPT, max_size: int = 2_048, stop: int = PROMPT
) -> list[int]:
    """The sizes of the steps; a step of `size` tokens after `done` takes `seconds(size, done)`."""
    steady.begin(tokens)
    steps: list[int] = []
    while (done := sum(steps)) < min(tokens, stop):
        size = min(steady.size(max_size, done), tokens - done)
        steady.took(size, seconds(size, done))
        steps.append(size)
    return steps


def pace_with_trial(
    *,
    first: int = 32_768,
    largest: int = 2_048,
    affords: Affords = lambda size, tokens, seconds: True,
) -> Pace:
    return Pace(first, trial=StepTrial(largest, affords))


def quick_when_large(size: int, done: int) -> float:
    """A device with a fixed cost per step."""
    return 0.1 + size * 1e-4 + size * done * 1e-9


def quick_when_small(size: int, done: int) -> float:
    return size * 1e-4 + size * size * 1e-7


def test_the_fastest_size_is_kept_after_the_trial() -> None:
    steps = read(pace_with_trial(), quick_when_large)
    assert steps[:6] == [512, 512, 1_024, 2_048, 1_024, 512]
    # The next step ends at a multiple of its size.
    assert steps[6:] == [512, 2_048, 2_048, 2_048, 2_048, 2_048]


def test_later_tokens_taking_longer_does_not_decide_the_trial() -> None:
    """The sizes tried last, after the most tokens, would look slower."""
    steps = read(pace_with_trial(), lambda size, done: size * (1e-4 + (done + size / 2) * 1e-7))
    assert set(steps[6:]) == {512}

    def also_5_percent_faster_at_1024(size: int, done: int) -> float:
        return size * (1e-4 + (done + size / 2) * 1e-7) * (0.95 if size == 1_024 else 1)

    steps = read(pace_with_trial(), also_5_percent_faster_at_1024)
    assert set(steps[6:]) == {512, 1_024}


def test_the_first_step_is_not_measured() -> None:
    """On a GPU, the first step also prepares kernels: 512 would always lose."""

    def slow_at_first(size: int, done: int) -> float:
        return size * 1e-4 + (1.0 if done == 0 else 0)

    assert set(read(pace_with_trial(), slow_at_first)[6:]) == {512}


def test_later_prompts_use_the_size_found() -> None:
    learned = pace_with_trial()
    read(learned, quick_when_large)
    assert read(learned, quick_when_large, 4_096) == [2_048, 2_048]
    assert read(learned, quick_when_large)[:2] == [2_048, 2_048]


def test_a_size_for_which_memory_is_short_is_not_tried() -> None:
    steps = read(pace_with_trial(affords=lambda size, *_: size < 2_048), quick_when_large)
    assert steps[:5] == [512, 512, 1_024, 1_024, 512]
    assert set(steps[6:-1]) == {1_024}
    assert set(read(pace_with_trial(affords=lambda *_: False), quick_when_large)) == {512}


def test_a_device_that_takes_seconds_per_step_tries_nothing() -> None:
    steps = read(pace_with_trial(first=256), lambda size, done: size * 0.006)
    assert set(steps) == {256}
    # Its steps become too long during the trial.
    steps = read(pace_with_trial(), lambda size, done: size * 0.003)
    assert steps[:4] == [512, 512, 1_024, 512]
    assert set(steps[4:]) == {512}


def test_a_larger_step_must_be_affordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """In time, or it would delay Ctrl-C, and in memory, since it takes more."""
    monkeypatch.setattr(pace.mx, "get_peak_memory", lambda: 3_000)
    monkeypatch.setattr(pace.mx, "get_active_memory", lambda: 2_000)
    monkeypatch.setattr(platform, "free_memory_bytes", lambda: 4_000)
    assert affords(1_024, 512, 0.9)
    assert not affords(1_024, 512, 1.1)
    monkeypatch.setattr(platform, "free_memory_bytes", lambda: 3_999)
    assert not affords(1_024, 512, 0.9)


def test_ranks_and_fixed_sizes_try_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank has its own memory."""
    network = build_random_model()
    fixed, auto = CacheSettings(), CacheSettings(prefill_step_size="auto")
    assert set(read(Pace.of(network, fixed), quick_when_large, max_size=512)) == {512}
    assert 2_048 in read(Pace.of(network, auto), quick_when_large)
    assert 2_048 not in read(Pace.of(network, replace(auto, max_kv_size=2_000)), quick_when_large)
    monkeypatch.setenv("MLX_RANK", "0")
    assert set(read(Pace.of(network, auto), quick_when_large)) == {512}


def test_recorded_steps_are_taken_without_a_trial() -> None:
    """A resumed run must read its prompt in the same steps, or its text may differ."""
    planned = [512, 512, 1_024, 2_048, 1_024, 512, 512, 2_048, 2_048]
    learned = Pace(32_768, planned, StepTrial(2_048, lambda *_: True))
    assert read(learned, quick_when_small)[: len(planned)] == planned


@pytest.mark.parametrize("tokens", [8_192, 10_000, 16_384, 100_000])
def test_steps_end_at_the_pages_of_the_prefix_cache(tokens: int) -> None:
    steps = read(pace_with_trial(), quick_when_large, tokens, stop=tokens)
    assert sum(steps) == tokens
    assert all(step % 128 == 0 for step in steps[:-1])
