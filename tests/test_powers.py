"""Attention and SwiGLU with powers of two, against mlx-lm's own."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn

from mlxchat import platform
from mlxchat.cache import powers
from mlxchat.cache.build import make_cache
from mlxchat.cache.powers import attention, install_powers, mlx_lms_own, swiglu
from mlxchat.errors import CacheError
from scripts.bench.workloads import prefilled_cache
from scripts.families import build_family
from tests.product import FAMILIES, INEXACT

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


@pytest.fixture
def fell_back(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions of mlx-lm that were called."""
    called: list[str] = []

    def recording(name: str) -> None:
        plain = getattr(powers, name)

        def record(*arguments: Any, **options: Any) -> mx.array:
            called.append(name)
            return plain(*arguments, **options)

        monkeypatch.setattr(powers, name, record)

    recording("plain_attention")
    recording("plain_swiglu")
    return called


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def visibility(draw: st.DrawFn, batch: int, tokens: int, slots: int) -> mx.array | str | None:
    """A mask that lets every token see something, as ours do."""
    kind = draw(st.sampled_from(["none", "causal", "two", "four"]))
    if kind == "none":
        return None
    if kind == "causal":
        return "causal"
    shape = (tokens, slots) if kind == "two" else (batch, 1, tokens, slots)
    seen = np.random.default_rng(draw(st.integers(0, 99))).random(shape)
    seen[..., 0] = 0
    return mx.array(seen) < 0.5


@settings(max_examples=60)
@given(data=st.data())
def test_attention_equals_mlxs(data: st.DataObject) -> None:
    draw = data.draw
    batch, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    slots = tokens + draw(st.integers(0, 9))
    kv_heads = draw(st.sampled_from([1, KV_HEADS, HEADS]))
    queries = 4 * normal(batch, tokens, HEADS, DIM).swapaxes(1, 2)
    # Part of a larger buffer, as a window's are.
    keys, values = (
        4 * normal(batch, kv_heads, slots + 5, dim, seed=seed)[..., :slots, :]
        for dim, seed in ((DIM, 1), (DIM + 3, 2))
    )
    mask = draw(st.composite(visibility)(batch, tokens, slots))
    found = attention(queries, keys, values, None, SCALE, mask)
    expected = powers.plain_attention(queries, keys, values, None, SCALE, mask)
    np.testing.assert_allclose(np.array(found), np.array(expected), atol=1e-4)


def test_a_token_that_sees_nothing_gets_finite_numbers() -> None:
    """A padded row, whose result nobody reads, must not spoil the others."""
    queries, keys = normal(1, HEADS, 2, DIM), normal(1, KV_HEADS, 3, DIM, seed=1)
    mask = mx.array([[False] * 3, [True] * 3])
    found = attention(queries, keys, keys, None, SCALE, mask)
    assert mx.isfinite(found).all()


@pytest.mark.parametrize("case", ["sinks", "additive", "by head", "half", "few", "GPU", "theirs"])
def test_attention_falls_back(
    case: str, fell_back: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, keys = normal(1, HEADS, 4, DIM), normal(1, KV_HEADS, 4, DIM, seed=1)
    visible = mx.tri(4, dtype=mx.bool_)
    masks = {
        "additive": mx.where(visible, 0.0, -mx.inf),
        "by head": mx.broadcast_to(visible, (1, HEADS, 4, 4)),
    }
    if case == "half":
        queries, keys = queries.astype(mx.bfloat16), keys.astype(mx.bfloat16)
    if case == "few":
        monkeypatch.setattr(powers, "MIN_SCORES", HEADS * 4 * 4 + 1)
    if case == "GPU":
        monkeypatch.setattr(powers, "_are_faster", False)
    sinks = mx.zeros(HEADS) if case == "sinks" else None

    def attend() -> None:
        mx.eval(attention(queries, keys, keys, None, SCALE, masks.get(case, "causal"), sinks))

    if case == "theirs":
        with mlx_lms_own():
            attend()
    else:
        attend()
    assert fell_back == ["plain_attention"]


def test_swiglu_equals_mlx_lms(fell_back: list[str]) -> None:
    gate = mx.array([-1e30, -1e4, -90, -88, -20, -1, -1e-9, 0, 1e-9, 1, 20, 88, 90, 1e4, 1e30])
    for x in (mx.ones(gate.shape), normal(*gate.shape)):
        found, expected = np.array(swiglu(gate, x)), np.array(powers.plain_swiglu(gate, x))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-30)
    half = gate.astype(mx.bfloat16)
    fell_back.clear()
    assert swiglu(half, half).dtype == mx.bfloat16
    assert fell_back == ["plain_swiglu"]


KINDS = ("llama", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_next", "llama4", "gemma2", "gpt2")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in KINDS else pytest.mark.slow)
        for name in sorted(set(FAMILIES) - INEXACT)
    ],
)
def test_every_family_computes_the_same(name: str) -> None:
    """In a window that wraps, if the family can have one."""
    network = build_family(name)
    install_powers(network)
    ids = mx.array(np.random.default_rng(1).integers(0, 256, (1, 30)))

    def logits() -> list[np.ndarray]:
        try:
            cache = make_cache(network, 24, 4)
        except CacheError:
            cache = make_cache(network)
        steps = (ids[:, :11], ids[:, 11:28], ids[:, 28:29], ids[:, 29:])
        return [np.array(network(step, cache=cache)[0, -1].astype(mx.float32)) for step in steps]

    found = logits()
    with mlx_lms_own():
        expected = logits()
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    network = build_family("llama")
    install_powers(network)
    return network


def test_a_llama_uses_both(llama: nn.Module, fell_back: list[str]) -> None:
    ids = mx.array([[1, 2, 3]])
    mx.eval(llama(ids, cache=make_cache(llama)))
    assert not fell_back
    with mlx_lms_own():
        mx.eval(llama(ids, cache=make_cache(llama)))
    assert {*fell_back} == {"plain_attention", "plain_swiglu"}


def test_mlx_lm_is_compared_as_it_is(llama: nn.Module, fell_back: list[str]) -> None:
    prefilled_cache(llama, np.array([1, 2, 3], np.int32))
    assert {*fell_back} == {"plain_attention", "plain_swiglu"}
