"""Positions never run out: keys are moved without changing the logits."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from mlxchat.cache import build, window
from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import positions_bounded, tokens_evicted, windows
from mlxchat.cache.positions import KeyShift
from scripts.families import build_family
from scripts.tiny_model import tiny_config
from tests.conftest import build_random_model
from tests.reference import logits, random_tokens

MODEL = build_random_model()

pytestmark = pytest.mark.usefixtures("as_on_metal")


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "qwen3_next"])
def test_logits_after_ten_million_tokens_equal_those_of_a_fresh_cache(name: str) -> None:
    """Only the counters are advanced: the same tokens are visible, at small positions."""
    model = build_family(name)
    cache = make_cache(model, 32, 4)
    for token in random_tokens(40):
        logits(model, cache, [token])
    old = cache.fork()
    for layer in windows(old):
        # Advanced by this many, then moved back by the whole excess at once.
        layer.total += 10_000_000
        assert layer.position_limit is not None
        layer._rebase(layer.position_limit - 25)
    assert {layer.offset for layer in windows(old)} == {build.POSITION_LIMIT - 25}
    for token in random_tokens(50, seed=3):
        expected = logits(model, cache, [token])
        np.testing.assert_allclose(logits(model, old, [token]), expected, atol=1e-3)
    assert tokens_evicted(old) > 10_000_000


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 4.0},
    "longrope": {"short_factor": [1.0] * 4, "long_factor": [1.0, 1.5, 2.0, 4.0]},
}


@pytest.mark.parametrize("name", sorted(ROPES))
def test_each_rope_is_shifted_by_its_rotation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits are the same whether keys move back every 64 tokens or never."""
    scaling = {"type": name, "original_max_position_embeddings": 64} | ROPES[name]
    model = build_random_model(tiny_config() | {"rope_scaling": scaling})
    never = make_cache(model, 32, 4)
    monkeypatch.setattr(build, "POSITION_LIMIT", 128)
    often = make_cache(model, 32, 4)
    assert positions_bounded(often)
    for token in random_tokens(160):
        expected = logits(model, never, [token])
        np.testing.assert_allclose(logits(model, often, [token]), expected, atol=1e-3)
    assert often[0].offset < 128 < never[0].offset


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_keys_do_not_drift(dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept keys are rotated from their originals, so 60 moves are as accurate as one."""
    model = build_random_model(tiny_config(layers=1))
    model.set_dtype(dtype)
    cache = make_cache(model, 32, 4)
    monkeypatch.setattr(window, "REANCHOR_EVERY", 8)
    for token in random_tokens(60 * 8):
        logits(model, cache, [token])
    layer = cache[0]
    exact = layer.shift(layer._originals.keys.astype(mx.float32), layer._anchor)
    error = mx.abs(layer.keys[..., :4, :].astype(mx.float32) - exact).max()
    tolerance = 0.02 if dtype == mx.bfloat16 else 0.003
    assert bool((error <= tolerance * mx.abs(exact).max()).item())


def test_an_unused_rope_moves_nothing() -> None:
    model = build_random_model()
    layers: Any = model.layers
    layers[0].self_attn.decoy = nn.RoPE(8, base=100.0)
    layers[1].self_attn.rope = nn.RoPE(8, base=500.0)
    assert [layer.shift.base for layer in make_cache(model, 16, 4)] == [10_000.0, 500.0]


def test_dynamic_ntk_positions_stay_below_the_change_of_its_rope() -> None:
    dynamic = {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 64}
    model = build_random_model(tiny_config() | dynamic)
    plain = build_random_model(tiny_config())
    cache, expected = make_cache(model, 16, 4), make_cache(plain, 16, 4)
    assert positions_bounded(cache)
    for token in random_tokens(100):
        wanted = logits(plain, expected, [token])
        np.testing.assert_allclose(logits(model, cache, [token]), wanted, atol=1e-3)
        assert cache[0].offset < 32
    assert not positions_bounded(make_cache(model, 20, 4))


def test_norms_after_a_rope_are_undone_before_a_key_is_moved() -> None:
    """HunYuan multiplies keys by norm weights after rotating them."""
    model = build_family("hunyuan_v1_dense")
    caches = [build._run_token_at(model, position) for position in (5, 900)]
    near, far = ([each.keys_and_values() for each in windows(cache)] for cache in caches)
    for layer, a, b in zip(make_cache(model, 16, 4), near, far, strict=True):
        assert layer.shift.gain is not None
        np.testing.assert_allclose(np.array(layer.shift(a[0], 895)), np.array(b[0]), atol=1e-3)


KEYS = mx.random.normal((2, 3, 5, 16), key=mx.random.key(0))
FREQS = mx.array([1.0, 2.0, 30.0, 400.0])


@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("gain", [None, mx.arange(1.0, 17.0)])
@pytest.mark.parametrize("freqs", [None, FREQS])
def test_no_offset_is_negative(start: int, gain: mx.array | None, freqs: mx.array | None) -> None:
    """Metal took it for four billion positions in layers whose rope begins within the head."""
    base = 10_000.0 if freqs is None else None
    shift = KeyShift(8, False, base, 1.0, freqs, start=start, gain=gain)
    back = shift(shift(KEYS, 1_000), -1_000)
    np.testing.assert_allclose(np.array(back), np.array(KEYS), atol=1e-3)
    # Metal's kernels would copy a transposed view of the whole window for every token.
    assert np.array(back, copy=False).flags.c_contiguous
