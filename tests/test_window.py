"""The cache's promises 1, 2, 3, 5 and 7 for plain global attention, against a plain reference.

The reference keeps Python lists and sees one token at a time: append, and when there are more than
`W` entries delete the oldest that is not kept. Whatever the sequence of operations, the model's
logits over the real cache must be those over the reference.
"""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn

from mlxchat.cache import WindowCache, make_cache, tokens_evicted, tokens_held
from mlxchat.errors import CacheError
from scripts.tiny_model import tiny_config
from tests.conftest import build_random_model

MODEL = build_random_model()


class ReferenceCache:
    """One layer's keys and values as a list of single tokens."""

    def __init__(self, window: int | None, keep: int) -> None:
        self.window, self.keep, self.offset = window, keep, 0
        self.entries: list[tuple[mx.array, mx.array]] = []

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        assert keys.shape[2] == 1, "the reference is fed one token at a time"
        self.entries.append((keys, values))
        if self.window is not None and len(self.entries) > self.window:
            del self.entries[self.keep]
        self.offset += 1
        ks, vs = zip(*self.entries, strict=True)
        return mx.concatenate(list(ks), axis=2), mx.concatenate(list(vs), axis=2)

    def rewind(self, n: int) -> None:
        hole = self.offset - len(self.entries)
        del self.entries[len(self.entries) - n :]
        self.offset -= n
        if len(self.entries) <= self.keep:
            self.offset -= hole


def reference_logits(
    model: nn.Module, cache: list[ReferenceCache], tokens: list[int]
) -> np.ndarray:
    rows = [model(mx.array([[token]]), cache=cache) for token in tokens]
    return np.array(mx.concatenate(rows, axis=1)[0])


def logits(model: nn.Module, cache: list[Any], tokens: list[int]) -> np.ndarray:
    return np.array(model(mx.array([tokens]), cache=cache)[0])


def random_tokens(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, n).tolist()


operation = st.one_of(
    st.tuples(st.just("feed"), st.integers(1, 24)),
    st.tuples(st.just("decode"), st.integers(1, 12)),
    st.tuples(st.just("rewind"), st.integers(1, 14)),
    st.tuples(st.just("restore"), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(
    window=st.integers(2, 16),
    keep=st.integers(0, 15),
    operations=st.lists(operation, min_size=1, max_size=8),
    seed=st.integers(0, 1000),
)
def test_any_sequence_of_operations_gives_the_logits_of_the_reference(
    window: int, keep: int, operations: list[tuple[str, int]], seed: int
) -> None:
    keep = min(keep, window - 1)
    cache = make_cache(MODEL, window, keep)
    reference = [ReferenceCache(window, keep) for _ in cache]
    rng = np.random.default_rng(seed)
    for name, n in operations:
        if name == "rewind":
            if tokens_held(cache) > window:
                # A prefill step still holds what the reference has already evicted: rewinding now
                # leaves more in view, rightly.
                continue
            taken = min(n, tokens_held(cache))
            assert {layer.trim(n) for layer in cache} == {taken}
            for layer in reference:
                layer.rewind(taken)
        elif name == "restore":
            cache = [WindowCache.from_state(layer.state) for layer in cache]
        else:
            tokens = rng.integers(0, 256, n).tolist()
            steps = [tokens] if name == "feed" else [[token] for token in tokens]
            found = np.concatenate([logits(MODEL, cache, step) for step in steps])
            expected = reference_logits(MODEL, reference, tokens)
            np.testing.assert_allclose(found, expected, atol=1e-4)
            largest_step = len(steps[-1])
            for layer in cache:
                assert layer.keys is not None
                assert layer.keys.shape[2] <= window + largest_step - 1
        assert {layer.offset for layer in cache} == {reference[0].offset}


@pytest.mark.parametrize("step", [1, 7, 32, 50])
def test_up_to_the_window_any_step_size_is_plain_attention(step: int) -> None:
    tokens = random_tokens(50)
    plain = np.array(MODEL(mx.array([tokens]))[0])
    cache = make_cache(MODEL, 50, 4)
    rows = [logits(MODEL, cache, tokens[i : i + step]) for i in range(0, 50, step)]
    np.testing.assert_allclose(np.concatenate(rows), plain, atol=1e-4)


@pytest.mark.parametrize(("window", "keep"), [(16, 4), (16, 0), (16, 15), (5, 4), (1, 0)])
def test_every_row_of_a_prefill_step_sees_itself_the_kept_and_the_latest(
    window: int, keep: int
) -> None:
    """mlx-lm's rotating cache masks the kept tokens out of steps of several tokens."""
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


def test_decode_overwrites_the_oldest_slot_after_the_kept() -> None:
    cache = WindowCache(4, 1)
    for position in range(6):
        token = mx.full((1, 1, 1, 1), position)
        cache.update_and_fetch(token, token)
    assert np.array(cache.keys).ravel().tolist() == [0, 4, 5, 3]


def test_an_unbounded_cache_never_evicts() -> None:
    cache = make_cache(MODEL)
    tokens = random_tokens(600)
    plain = np.array(MODEL(mx.array([tokens]))[0])
    rows = [logits(MODEL, cache, tokens[:590])] + [
        logits(MODEL, cache, [token]) for token in tokens[590:]
    ]
    np.testing.assert_allclose(np.concatenate(rows), plain, atol=1e-4)
    assert tokens_held(cache) == 600
    assert tokens_evicted(cache) == 0


@pytest.mark.parametrize("decoded", [0, 3, 12, 13, 29])
def test_state_restores_to_the_bit_from_any_index_of_the_ring(decoded: int) -> None:
    cache = make_cache(MODEL, 16, 4)
    logits(MODEL, cache, random_tokens(10))
    for token in random_tokens(decoded):
        logits(MODEL, cache, [token])
    restored = [WindowCache.from_state(layer.state) for layer in cache]
    for token in random_tokens(20, seed=1):
        expected = logits(MODEL, cache, [token])
        assert (logits(MODEL, restored, [token]) == expected).all()


def test_a_state_taken_stays_as_it_was_when_the_cache_goes_on() -> None:
    cache = WindowCache(4, 0)
    four = mx.arange(4).reshape(1, 1, 4, 1)
    cache.update_and_fetch(four, four)
    state = cache.state
    other = WindowCache.from_state(state)
    one = mx.full((1, 1, 1, 1), 9)
    cache.update_and_fetch(one, one)
    other.update_and_fetch(one + 1, one + 1)
    assert np.array(state[0]).ravel().tolist() == [0, 1, 2, 3]
    assert np.array(cache.keys).ravel().tolist() == [9, 1, 2, 3]


@pytest.mark.parametrize("window_size", [1, 3, 7])
@pytest.mark.parametrize("fed", [2, 8, 9, 13])
def test_a_narrower_window_asked_of_the_mask_shows_only_the_latest(
    window_size: int, fed: int
) -> None:
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


def test_rewinding_more_than_is_held_empties_the_cache() -> None:
    cache = make_cache(MODEL, 8, 2)
    for token in random_tokens(20):
        logits(MODEL, cache, [token])
    assert cache[0].trim(100) == 8
    for layer in cache[1:]:
        layer.trim(100)
    assert cache[0].empty()
    assert cache[0].offset == 0
    tokens = random_tokens(6, seed=3)
    np.testing.assert_allclose(
        logits(MODEL, cache, tokens), np.array(MODEL(mx.array([tokens]))[0]), atol=1e-4
    )


def test_a_native_sliding_window_becomes_ours_with_nothing_kept() -> None:
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

    class Model:
        def make_cache(self) -> list[Hoarder]:
            return [Hoarder()]

    with pytest.raises(CacheError, match="layer 0 keeps its past in a Hoarder"):
        make_cache(Model(), 16)  # type: ignore[arg-type]
    assert len(make_cache(Model())) == 1  # type: ignore[arg-type]
