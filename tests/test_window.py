"""The cache's promises on a plain model: visibility, storage, eviction, rewind, snapshot, fork."""

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache, tokens_evicted, tokens_held
from mlxchat.cache.positions import KeyShift
from mlxchat.cache.window import WindowCache
from mlxchat.errors import CacheError
from scripts.families import build_family
from scripts.tiny_model import tiny_config
from tests.conftest import build_random_model
from tests.reference import (
    Rotation,
    logits,
    random_tokens,
    reference_cache,
    references,
    restored,
    step_both,
)

MODEL = build_random_model()


@pytest.mark.parametrize("step", [1, 7, 32, 50])
def test_any_step_size_within_the_window_equals_plain_attention(step: int) -> None:
    tokens = random_tokens(50)
    plain = np.array(MODEL(mx.array([tokens]))[0])
    cache = make_cache(MODEL, 50, 4)
    rows = [logits(MODEL, cache, tokens[i : i + step]) for i in range(0, 50, step)]
    np.testing.assert_allclose(np.concatenate(rows), plain, atol=1e-4)


@pytest.mark.parametrize("keep", [0, 9])
@pytest.mark.parametrize("step", [7, 100])
@pytest.mark.parametrize("length", [15, 16, 17, 48])
def test_a_prompt_about_as_long_as_the_window_matches_the_reference(
    length: int, step: int, keep: int
) -> None:
    """Steps that end exactly at the window, wider steps, and a turn after the ring wrapped."""
    cache = make_cache(MODEL, 16, keep)
    reference = reference_cache(MODEL, 16, keep, [Rotation(8)] * 2)
    for turn in range(2):
        tokens = random_tokens(length, seed=turn)
        for start in range(0, length, step):
            step_both(MODEL, cache, reference, tokens[start : start + step])
        for token in random_tokens(6, seed=turn):
            step_both(MODEL, cache, reference, [token])


@pytest.mark.parametrize(("window", "keep"), [(16, 4), (16, 0), (16, 15), (5, 4), (1, 0)])
def test_each_prefill_row_sees_itself_the_kept_and_the_latest_tokens(
    window: int, keep: int
) -> None:
    """mlx-lm's rotating cache masks out the kept tokens in steps of several tokens."""
    cache = WindowCache(window, keep)
    stored = mx.zeros((1, 1, 3 * window, 1))
    cache.update_and_fetch(stored, stored)
    rows = 6
    held = min(3 * window, window - 1)
    mask = np.array(cache.make_mask(rows))
    assert mask.shape == (rows, held + rows)
    for row in range(rows):
        itself = held + row
        latest = set(range(itself - (window - keep) + 1, itself + 1))
        assert set(np.flatnonzero(mask[row])) == latest | set(range(keep))
        assert mask[row].sum() == window


@pytest.mark.parametrize("length", [15, 16, 17, 31, 40])
def test_decode_holds_exactly_the_window_and_allocates_nothing(length: int) -> None:
    cache = make_cache(MODEL, 16, 4)
    logits(MODEL, cache, random_tokens(length))
    for token in random_tokens(40):
        logits(MODEL, cache, [token])
    assert {layer.keys.shape[2] for layer in cache} == {16}
    assert tokens_held(cache) == 16
    assert tokens_evicted(cache) == length + 40 - 16


def test_decode_overwrites_the_oldest_slot_after_the_kept_ones() -> None:
    cache = WindowCache(4, 1)
    for position in range(6):
        token = mx.full((1, 1, 1, 1), position)
        cache.update_and_fetch(token, token)
    assert np.array(cache.keys).ravel().tolist() == [0, 4, 5, 3]


def test_a_state_does_not_change_with_its_cache() -> None:
    cache = WindowCache(4, 0)
    four = mx.arange(4).reshape(1, 1, 4, 1)
    cache.update_and_fetch(four, four)
    entries = cache.entries
    other = restored(cache)
    one = mx.full((1, 1, 1, 1), 9)
    cache.update_and_fetch(one, one)
    other.update_and_fetch(one + 1, one + 1)
    assert np.array(entries.keys).ravel().tolist() == [0, 1, 2, 3]
    assert np.array(cache.keys).ravel().tolist() == [9, 1, 2, 3]


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
    latest = sorted(positions.tolist())[-window_size:]
    assert sorted(seen.tolist()) == latest


@pytest.mark.parametrize("n", [8, 15, 20, 100])
def test_rewinding_everything_held_starts_from_scratch(n: int) -> None:
    cache = make_cache(MODEL, 8, 2)
    for token in random_tokens(20):
        logits(MODEL, cache, [token])
    assert cache[0].trim(n) == min(n, 20)
    Cache(cache[1:]).rewind(n)
    assert all(layer.empty() and layer.total == 20 - min(n, 20) for layer in cache)
    tokens = random_tokens(6, seed=3)
    np.testing.assert_allclose(
        logits(MODEL, cache, tokens), np.array(MODEL(mx.array([tokens]))[0]), atol=1e-4
    )


def test_layers_with_windows_of_several_sizes_rewind_together() -> None:
    """A sliding layer holding fewer tokens than were taken back ended at a different position; some
    models read one layer's position for all."""
    model = build_family("gemma3n")
    cache = make_cache(model, 32, 4)
    for token in random_tokens(30):
        logits(model, cache, [token])
    cache.rewind(20)
    assert {layer.offset for layer in cache} == {10}
    assert {layer.size() for layer in cache} == {0, 10}


def test_a_native_sliding_window_becomes_ours_with_no_kept_tokens() -> None:
    config = tiny_config() | {
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 8,
    }
    model = build_random_model(config)
    wide = make_cache(model, 32, 4)
    assert [(layer.max_size, layer.keep) for layer in wide] == [(32, 4), (8, 0)]
    narrow = make_cache(model, 6, 4)
    assert [(layer.max_size, layer.keep) for layer in narrow] == [(6, 4), (6, 4)]
    tokens = random_tokens(30)
    plain = np.array(model(mx.array([tokens]))[0])
    rows = [logits(model, wide, tokens[i : i + 7]) for i in range(0, 30, 7)]
    np.testing.assert_allclose(np.concatenate(rows), plain, atol=1e-4)


def test_a_layer_that_cannot_be_bounded_is_refused_by_name() -> None:
    class Hoarder:
        pass

    class Model(nn.Module):
        def make_cache(self) -> list[Hoarder]:
            return [Hoarder()]

    with pytest.raises(CacheError, match="layer 0 uses a Hoarder"):
        make_cache(Model(), 16)
    assert len(make_cache(Model())) == 1


def test_evicting_spans_moves_up_the_tokens_before_them() -> None:
    """After a pinned turn was released, the turns before it appeared twice."""
    cache = make_cache(MODEL, 64, 4)
    reference = reference_cache(MODEL, 64, 4, [Rotation(8)] * 2)
    step_both(MODEL, cache, reference, random_tokens(40))
    for start, stop in ((20, 25), (8, 12), (30, 31), (5, 6)):
        before = cache[0].offset, cache[0].size()
        for layer, plain in zip(cache, references(reference), strict=True):
            layer.evict(start, stop)
            plain.evict(start, stop)
        assert (cache[0].offset, cache[0].size()) == (before[0], before[1] - (stop - start))
        step_both(MODEL, cache, reference, random_tokens(3, seed=start))
    for token in random_tokens(60, seed=2):
        step_both(MODEL, cache, reference, [token])


@pytest.mark.parametrize(("start", "stop"), [(3, 8), (8, 5), (5, 41)])
def test_only_a_span_after_the_kept_tokens_can_be_evicted(start: int, stop: int) -> None:
    cache = make_cache(MODEL, 64, 4)
    logits(MODEL, cache, random_tokens(40))
    with pytest.raises(CacheError, match="cannot evict"):
        cache[0].evict(start, stop)


@pytest.mark.parametrize("fed", [10, 16, 40])
def test_a_fork_and_its_origin_are_independent(fed: int) -> None:
    cache = make_cache(MODEL, 16, 4)
    for token in random_tokens(fed):
        logits(MODEL, cache, [token])
    twin = [restored(layer) for layer in cache]
    other = cache.fork()
    for token in random_tokens(30, seed=1):
        logits(MODEL, other, [token])
    for token in random_tokens(30, seed=2):
        expected = logits(MODEL, twin, [token])
        assert (logits(MODEL, cache, [token]) == expected).all()


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
    """Adds one to a key each time it is moved."""

    def __call__(self, keys: mx.array, distance: int) -> mx.array:
        return keys if distance == 0 else keys + 1


COUNTED = CountedShift(dims=1, traditional=False, base=1.0, scale=1.0)
MAX_ROTATIONS = 8


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("seed", range(8))
def test_no_key_is_ever_rotated_more_than_a_few_times(seed: int, keep: int) -> None:
    """Each forgotten turn used to rotate everything after it, and a pinned turn without end."""
    rng = np.random.default_rng(seed)
    cache = WindowCache(32, keep, shift=COUNTED, position_limit=64)
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


def test_a_token_fed_after_rewinding_into_the_kept_ones_is_kept() -> None:
    """The originals of rewound kept tokens used to replace it at the next move."""
    cache = make_cache(MODEL, 6, 4)
    reference = reference_cache(MODEL, 6, 4, [Rotation(8)] * 2)
    for token in random_tokens(100):
        step_both(MODEL, cache, reference, [token])
    for layer, plain in zip(cache, references(reference), strict=True):
        layer.trim(4)
        plain.rewind(4)
    for token in random_tokens(150, seed=1):
        step_both(MODEL, cache, reference, [token])
