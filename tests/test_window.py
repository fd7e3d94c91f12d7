"""The window's promises, one at a time; `test_cache_reference` tries any sequence of operations."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn

from mlxchat.cache.build import make_cache
from mlxchat.cache.positions import KeyShift
from mlxchat.cache.window import WindowCache
from mlxchat.errors import CacheError
from tests.conftest import build_random_model, examples
from tests.reference import logits, random_tokens

MODEL = build_random_model()


@pytest.mark.parametrize("window_size", [1, 3, 7])
@pytest.mark.parametrize("fed", [2, 8, 9, 13])
def test_a_mask_for_a_narrower_window_shows_only_the_latest(window_size: int, fed: int) -> None:
    cache = WindowCache(8, 2)
    for position in range(fed):
        token = mx.full((1, 1, 1, 1), position)
        cache.update_and_fetch(token, token)
    mask = cache.make_mask(1, window_size=window_size)
    token = mx.full((1, 1, 1, 1), fed)
    keys, _ = cache.update_and_fetch(token, token)
    positions = np.array(keys).ravel()
    seen = positions if mask is None else positions[np.array(mask)[0]]
    assert sorted(seen.tolist()) == sorted(positions.tolist())[-window_size:]


def test_a_layer_that_cannot_be_bounded_is_refused_by_name() -> None:
    class Hoarder:
        pass

    class Model(nn.Module):
        def make_cache(self) -> list[Hoarder]:
            return [Hoarder()]

    with pytest.raises(CacheError, match="layer 0 uses a Hoarder"):
        make_cache(Model(), 16)
    assert len(make_cache(Model())) == 1


@pytest.mark.parametrize(("start", "stop"), [(3, 8), (8, 5), (5, 41)])
def test_only_a_span_after_the_kept_tokens_can_be_evicted(start: int, stop: int) -> None:
    cache = make_cache(MODEL, 64, 4)
    logits(MODEL, cache, random_tokens(40))
    with pytest.raises(CacheError, match="cannot evict"):
        cache[0].evict(start, stop)


def test_a_fork_costs_nothing_until_one_side_writes() -> None:
    cache = WindowCache(4096, 4)
    token = mx.ones((1, 8, 4096, 64))
    cache.update_and_fetch(token, token)
    mx.eval(cache.state)
    before = mx.get_active_memory()
    other = cache.copy()
    mx.eval(other.state)
    assert mx.get_active_memory() == before


class CountedShift(KeyShift):
    def __call__(self, keys: mx.array, distance: int) -> mx.array:
        return keys if distance == 0 else keys + 1


COUNTED = CountedShift(dims=1, traditional=False, base=1.0, scale=1.0)
MAX_ROTATIONS = 8


@given(seed=st.integers(0, 1000), keep=st.sampled_from([0, 4]))
@settings(max_examples=examples(10))
def test_no_key_is_ever_rotated_more_than_a_few_times(seed: int, keep: int) -> None:
    """Each forgotten turn used to rotate everything after it, and a pinned turn without end."""
    rng = np.random.default_rng(seed)
    cache = WindowCache(32, keep)
    cache.shift, cache.position_limit = COUNTED, 64
    largest = 0.0
    for _ in range(400):
        held = cache.size()
        operation, n = rng.choice(["feed", "decode", "rewind", "evict"]), int(rng.integers(1, 12))
        if operation == "rewind":
            cache.trim(n)
        elif operation == "evict" and keep < held:
            start = int(rng.integers(keep, held))
            cache.evict(start, min(start + n, held))
        else:
            for step in [n] if operation == "feed" else [1] * n:
                new = mx.zeros((1, 1, step, 1))
                cache.make_mask(step)
                cache.update_and_fetch(new, new)
        if cache.keys is not None and cache.values is not None:
            assert cache.keys.shape == cache.values.shape
            largest = max(largest, float(np.array(cache.keys).max()))
        assert cache.offset < 64
        assert cache._originals.tokens <= cache.size()
    assert 1 <= largest <= MAX_ROTATIONS
