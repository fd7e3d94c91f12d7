"""The cache's promises for plain global attention, against a plain reference.

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

from mlxchat.cache import (
    WindowCache,
    build,
    make_cache,
    positions_bounded,
    tokens_evicted,
    tokens_held,
)
from mlxchat.cache.window import REANCHOR_EVERY
from mlxchat.errors import CacheError
from scripts.tiny_model import tiny_config
from tests.conftest import build_random_model

MODEL = build_random_model()


def rotate(key: mx.array, distance: int, base: float = 10000.0) -> mx.array:
    """Rope by its definition: pairs of dimensions, half a head apart, turned as complex numbers."""
    x = np.array(key).astype(np.float64)
    half = x.shape[-1] // 2
    angles = distance * base ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return mx.array(np.concatenate([turned.real, turned.imag], -1).astype(np.float32))


class ReferenceCache:
    """One layer's keys and values as a list of single tokens, positions running on for ever.

    `anchor` is by how much the kept tokens are moved up: when is the real cache's choice.
    """

    def __init__(self, window: int | None, keep: int) -> None:
        self.window, self.keep, self.offset, self.anchor = window, keep, 0, 0
        self.entries: list[tuple[mx.array, mx.array]] = []

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        assert keys.shape[2] == 1, "the reference is fed one token at a time"
        self.entries.append((keys, values))
        if self.window is not None and len(self.entries) > self.window:
            del self.entries[self.keep]
        self.offset += 1
        ks = [rotate(k, self.anchor) for k, _ in self.entries[: self.keep]]
        ks += [k for k, _ in self.entries[self.keep :]]
        return mx.concatenate(ks, axis=2), mx.concatenate([v for _, v in self.entries], axis=2)

    def rewind(self, n: int) -> None:
        del self.entries[len(self.entries) - n :]
        self.offset -= n
        if len(self.entries) <= self.keep:
            self.offset, self.anchor = len(self.entries), 0

    def evict(self, start: int, stop: int) -> None:
        later = [(rotate(k, start - stop), v) for k, v in self.entries[stop:]]
        self.entries = self.entries[:start] + later
        self.offset -= stop - start


def reference_logits(
    model: nn.Module, cache: list[ReferenceCache], tokens: list[int]
) -> np.ndarray:
    rows = [model(mx.array([[token]]), cache=cache) for token in tokens]
    return np.array(mx.concatenate(rows, axis=1)[0])


def logits(model: nn.Module, cache: list[Any], tokens: list[int]) -> np.ndarray:
    return np.array(model(mx.array([tokens]), cache=cache)[0].astype(mx.float32))


def random_tokens(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, n).tolist()


def step_both(
    model: nn.Module, cache: list[Any], reference: list[ReferenceCache], step: list[int]
) -> None:
    """Feed a step to both and compare logits, storage and positions."""
    found = logits(model, cache, step)
    for layer, plain in zip(cache, reference, strict=True):
        # Only differences of positions matter: the real cache may have moved everything back.
        plain.anchor = layer._anchor + plain.offset + len(step) - layer.offset
    np.testing.assert_allclose(found, reference_logits(model, reference, step), atol=1e-4)
    for layer, plain in zip(cache, reference, strict=True):
        assert layer.keys is not None
        assert layer.keys.shape[2] <= layer.max_size + len(step) - 1
        gap = plain.offset - len(plain.entries) - plain.anchor
        assert 0 <= gap <= (len(step) if len(step) > 1 else REANCHOR_EVERY)
        assert layer.position_limit is None or layer.offset < layer.position_limit


operation = st.one_of(
    st.tuples(st.just("feed"), st.integers(1, 24)),
    st.tuples(st.just("decode"), st.integers(1, 12)),
    st.tuples(st.just("decode"), st.integers(60, 80)),
    st.tuples(st.just("rewind"), st.integers(1, 14)),
    st.tuples(st.just("evict"), st.integers(1, 5)),
    st.tuples(st.just("restore"), st.just(0)),
    st.tuples(st.just("fork"), st.integers(1, 3)),
)


@settings(max_examples=80, deadline=None)
@given(
    window=st.integers(2, 16),
    keep=st.integers(0, 15),
    operations=st.lists(operation, min_size=1, max_size=8),
    limit=st.sampled_from([64, 128, 65_536]),
    seed=st.integers(0, 1000),
)
def test_any_sequence_of_operations_gives_the_logits_of_the_reference(
    window: int, keep: int, operations: list[tuple[str, int]], limit: int, seed: int
) -> None:
    keep = min(keep, window - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "POSITION_LIMIT", limit)
        cache = make_cache(MODEL, window, keep)
    assert positions_bounded(cache)
    reference = [ReferenceCache(window, keep) for _ in cache]
    rng = np.random.default_rng(seed)
    for name, n in operations:
        if name in ("rewind", "evict") and tokens_held(cache) > window:
            # A prefill step still holds what the reference has already evicted: taking something
            # away now leaves more in view, rightly.
            continue
        if name == "rewind":
            taken = min(n, tokens_held(cache))
            assert {layer.trim(n) for layer in cache} == {taken}
            for plain in reference:
                plain.rewind(taken)
        elif name == "evict":
            start = min(keep + n, tokens_held(cache))
            stop = min(start + n, tokens_held(cache))
            if start < keep:
                continue
            for layer, plain in zip(cache, reference, strict=True):
                layer.evict(start, stop)
                plain.evict(start, stop)
        elif name == "restore":
            cache = [WindowCache.from_state(layer.state) for layer in cache]
        elif name == "fork":
            forks = [layer.copy() for layer in cache]
            for _ in range(n):
                logits(MODEL, forks, [7])
        else:
            tokens = rng.integers(0, 256, n).tolist()
            for step in [tokens] if name == "feed" else [[token] for token in tokens]:
                step_both(MODEL, cache, reference, step)


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


def test_evicting_a_span_moves_the_later_tokens_up() -> None:
    cache = make_cache(MODEL, 64, 4)
    reference = [ReferenceCache(64, 4) for _ in cache]
    step_both(MODEL, cache, reference, random_tokens(40))
    for layer, plain in zip(cache, reference, strict=True):
        layer.evict(10, 25)
        plain.evict(10, 25)
    assert {(layer.offset, layer.size(), layer.evicted) for layer in cache} == {(25, 25, 15)}
    step_both(MODEL, cache, reference, random_tokens(10, seed=1))
    for token in random_tokens(60, seed=2):
        step_both(MODEL, cache, reference, [token])


@pytest.mark.parametrize(("start", "stop"), [(3, 8), (8, 5), (5, 41)])
def test_only_a_span_behind_the_kept_can_be_evicted(start: int, stop: int) -> None:
    cache = make_cache(MODEL, 64, 4)
    logits(MODEL, cache, random_tokens(40))
    with pytest.raises(CacheError, match="cannot evict"):
        cache[0].evict(start, stop)


@pytest.mark.parametrize("fed", [10, 16, 40])
def test_a_fork_and_its_origin_go_their_own_ways(fed: int) -> None:
    cache = make_cache(MODEL, 16, 4)
    for token in random_tokens(fed):
        logits(MODEL, cache, [token])
    twin = [WindowCache.from_state(layer.state) for layer in cache]
    fork = [layer.copy() for layer in cache]
    for token in random_tokens(30, seed=1):
        logits(MODEL, fork, [token])
    for token in random_tokens(30, seed=2):
        expected = logits(MODEL, twin, [token])
        assert (logits(MODEL, cache, [token]) == expected).all()


def test_after_ten_million_tokens_the_logits_are_those_of_a_fresh_cache() -> None:
    """The state is set forward, not run there: the same visible tokens, at small positions."""
    cache = make_cache(MODEL, 64, 4)
    for token in random_tokens(100):
        logits(MODEL, cache, [token])
    old = [layer.copy() for layer in cache]
    for layer in old:
        layer.total += 10_000_000
        distance = 50_000
        layer._kept_originals()
        layer.keys = layer.shift(layer.keys, distance)
        layer.offset += distance
        layer._anchor += distance
    for token in random_tokens(200, seed=3):
        np.testing.assert_allclose(
            logits(MODEL, old, [token]), logits(MODEL, cache, [token]), atol=1e-3
        )
    assert tokens_evicted(old) > 10_000_000


def test_offsets_stay_below_the_limit_however_long_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "POSITION_LIMIT", 256)
    cache = make_cache(MODEL, 32, 4)
    offsets = []
    for _ in range(20):
        for layer_tokens in (random_tokens(50), [1], [2]):
            logits(MODEL, cache, layer_tokens)
            offsets.append({layer.offset for layer in cache})
    assert all(len(together) == 1 for together in offsets)
    assert max(max(together) for together in offsets) < 256
    assert cache[0].total == 20 * 52


ROPES: dict[str, dict[str, Any]] = {
    "standard": {},
    "traditional": {"rope_traditional": True},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn": {
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    },
    "longrope": {
        "rope_scaling": {
            "type": "longrope",
            "original_max_position_embeddings": 64,
            "short_factor": [1.0, 1.0, 1.0, 1.0],
            "long_factor": [1.0, 1.5, 2.0, 4.0],
        }
    },
}


@pytest.mark.parametrize("name", sorted(ROPES))
def test_each_rope_is_shifted_by_its_own_rotation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved back every 64 tokens or never, the logits are the same."""
    model = build_random_model(tiny_config() | ROPES[name])
    never = make_cache(model, 32, 4)
    monkeypatch.setattr(build, "POSITION_LIMIT", 128)
    often = make_cache(model, 32, 4)
    assert positions_bounded(often)
    for token in random_tokens(300):
        np.testing.assert_allclose(
            logits(model, often, [token]), logits(model, never, [token]), atol=1e-3
        )
    assert often[0].offset < 128 < never[0].offset


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_keys_in_half_precision_do_not_drift_when_they_are_moved(dtype: mx.Dtype) -> None:
    """The kept keys come from their originals each time: as far off after 60 moves as after one."""
    model = build_random_model()
    model.set_dtype(dtype)
    cache = make_cache(model, 32, 4)
    for token in random_tokens(60 * REANCHOR_EVERY):
        logits(model, cache, [token])
    layer = cache[0]
    exact = layer.shift(layer._originals.astype(mx.float32), layer._anchor)
    error = mx.abs(layer.keys[..., :4, :].astype(mx.float32) - exact).max()
    tolerance = 0.02 if dtype == mx.bfloat16 else 0.003
    assert bool((error <= tolerance * mx.abs(exact).max()).item())


def test_a_rope_that_cannot_be_shifted_leaves_positions_to_run_on() -> None:
    dynamic = {"rope_scaling": {"type": "dynamic", "factor": 4.0}}
    model = build_random_model(tiny_config() | dynamic)
    cache = make_cache(model, 16, 4)
    assert not positions_bounded(cache)
    for token in random_tokens(100):
        logits(model, cache, [token])
    assert cache[0].offset == 100
    with pytest.raises(CacheError, match="cannot be shifted"):
        cache[0].evict(5, 8)


def test_a_layer_whose_keys_are_not_where_its_rope_says_is_not_shifted() -> None:
    """A rope module that the layer does not use, or not so, must not move its keys."""
    model = build_random_model()
    layers: Any = model.layers
    attention = layers[0].self_attn
    real = attention.rope
    attention.rope = nn.RoPE(8, base=100.0)
    attention.decoy = real
    assert not positions_bounded(make_cache(model, 16, 4))


def test_a_token_fed_after_rewinding_into_the_kept_is_kept_itself() -> None:
    """The originals of the kept tokens that were rewound once took its place at the next move."""
    cache = make_cache(MODEL, 6, 4)
    reference = [ReferenceCache(6, 4) for _ in cache]
    for token in random_tokens(100):
        step_both(MODEL, cache, reference, [token])
    for layer, plain in zip(cache, reference, strict=True):
        layer.trim(4)
        plain.rewind(4)
    for token in random_tokens(150, seed=1):
        step_both(MODEL, cache, reference, [token])


FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {},
    "olmo2": {},
    "phi3": {"rope_scaling": None},
    "gemma2": {
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 8,
    },
    "gemma3_text": {
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 8,
    },
    "cohere2": {
        "layer_norm_eps": 1e-5,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "logit_scale": 1.0,
    },
    "smollm3": {"no_rope_layer_interval": 2, "no_rope_layers": [1, 0, 1, 0]},
}


def family_config(model_type: str, extra: dict[str, Any]) -> dict[str, Any]:
    sizes = {"num_hidden_layers": 4, "head_dim": 8}
    return tiny_config() | sizes | {"model_type": model_type} | extra


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_families_keep_the_bound_and_their_positions(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved back often or never: the same logits."""
    model = build_random_model(family_config(model_type, FAMILIES[model_type]))
    never = make_cache(model, 32, 4)
    monkeypatch.setattr(build, "POSITION_LIMIT", 128)
    often = make_cache(model, 32, 4)
    assert positions_bounded(often)
    for step in [[token] for token in random_tokens(150)] + [random_tokens(20)] * 8:
        np.testing.assert_allclose(
            logits(model, often, step), logits(model, never, step), atol=1e-3
        )
    assert min(layer.offset for layer in never) > 300
    assert max(layer.offset for layer in often) < 128
    assert max(layer.size() for layer in often) <= 32 + 20 - 1


@pytest.mark.parametrize(
    ("model_type", "extra"),
    [
        (
            "mamba",
            {
                "state_size": 8,
                "conv_kernel": 4,
                "use_bias": False,
                "use_conv_bias": True,
                "time_step_rank": 4,
            },
        ),
        (
            "lfm2",
            {
                "norm_eps": 1e-5,
                "conv_bias": False,
                "conv_L_cache": 3,
                "block_dim": 32,
                "block_ff_dim": 64,
                "block_multiple_of": 8,
                "block_ffn_dim_multiplier": 1.0,
                "block_auto_adjust_ff_dim": False,
                "full_attn_idxs": [1, 3],
            },
        ),
    ],
)
def test_recurrent_state_stays_as_it_is_beside_bounded_attention(
    model_type: str, extra: dict[str, Any]
) -> None:
    model = build_random_model(family_config(model_type, extra))
    cache = make_cache(model, 16, 4)
    for token in random_tokens(50):
        logits(model, cache, [token])
    assert all(layer.size() <= 16 for layer in cache if isinstance(layer, WindowCache))
    assert tokens_held(cache) <= 16
