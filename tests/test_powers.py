"""Attention and SwiGLU with powers of two, against mlx-lm's own; `test_families` tries all."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models import llama

from mlxchat import platform
from mlxchat.cache import powers
from mlxchat.cache.powers import attention, install_powers, swiglu
from scripts.families import build_family

HEADS, KV_HEADS, DIM = 6, 2, 8
SCALE = DIM**-0.5


@pytest.fixture(autouse=True, scope="module")
def _even_small_ones() -> Iterator[None]:
    """As on a Linux CPU, and for few scores too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "exp_is_slow", lambda: True)
        patch.setattr(powers, "_are_faster", True)
        patch.setattr(powers, "MIN_SCORES", 0)
        yield


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


MASKS = ("none", "causal", "boolean", "of each row", "of each head", "additive")


def mask_of(kind: str, batch: int, tokens: int, slots: int) -> mx.array | str | None:
    """A mask that lets every token see something, as ours do."""
    if kind in ("none", "causal"):
        return None if kind == "none" else kind
    heads = HEADS if kind == "of each head" else 1
    shape = (batch, heads, tokens, slots) if kind.startswith("of") else (tokens, slots)
    hidden = np.random.default_rng(slots).random(shape)
    hidden[..., 0] = 0
    seen = mx.array(hidden) < 0.5
    return mx.where(seen, 0.0, -mx.inf) if kind == "additive" else seen


@given(
    batch=st.integers(1, 3),
    tokens=st.integers(1, 9),
    before=st.integers(0, 9),
    kv_heads=st.sampled_from([1, KV_HEADS, HEADS]),
    mask=st.sampled_from(MASKS),
    has_sinks=st.booleans(),
)
def test_attention_equals_mlxs(
    *, batch: int, tokens: int, before: int, kv_heads: int, mask: str, has_sinks: bool
) -> None:
    slots = tokens + before
    queries = 4 * normal(batch, tokens, HEADS, DIM).swapaxes(1, 2)
    # Part of a larger buffer, as a window's are.
    keys, values = (
        4 * normal(batch, kv_heads, slots + 5, DIM, seed=seed)[..., :slots, :] for seed in (1, 2)
    )
    how = mask_of(mask, batch, tokens, slots), normal(HEADS, seed=3) if has_sinks else None
    found = attention(queries, keys, values, None, SCALE, *how)
    expected = powers.plain_attention(queries, keys, values, None, SCALE, *how)
    np.testing.assert_allclose(np.array(found), np.array(expected), atol=1e-4)


def test_a_token_that_sees_nothing_gets_finite_numbers() -> None:
    """A padded row, whose result nobody reads, must not spoil the others."""
    queries, keys = normal(1, HEADS, 2, DIM), normal(1, KV_HEADS, 3, DIM, seed=1)
    mask = mx.array([[False] * 3, [True] * 3])
    assert mx.isfinite(attention(queries, keys, keys, None, SCALE, mask)).all()


def test_swiglu_equals_mlx_lms() -> None:
    gate = mx.array([-1e30, -1e4, -90, -88, -20, -1, -1e-9, 0, 1e-9, 1, 20, 88, 90, 1e4, 1e30])
    for x in (mx.ones(gate.shape), normal(*gate.shape)):
        found, expected = np.array(swiglu(gate, x)), np.array(powers.plain_swiglu(gate, x))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-30)


def test_a_llama_uses_both() -> None:
    install_powers(build_family("llama"))
    module: Any = llama
    assert module.scaled_dot_product_attention in (attention, powers.attention_to_shared)
    assert module.swiglu is swiglu
