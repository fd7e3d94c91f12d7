"""Rows side by side: each sees exactly what it would see in a cache of its own."""

from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn

from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache, leaves, most_together, windows
from mlxchat.cache.side_by_side import STEPS, RowsCache, compute_alike, find_support
from mlxchat.engine.batch import prefill_together
from mlxchat.errors import CacheError, ModelUnsupported
from scripts.families import CONFIGS, METAL_ONLY, build_family

WINDOW, KEEP = 48, 4

# One family of each kind of cache: plain, sliding windows, recurrent states, both, latents, lists
# of caches, shared caches, grouped masks, learned positions, one offset for all rows.
KINDS = (
    *("llama", "gemma3", "mamba2", "qwen3_next", "deepseek_v3", "deepseek_v32", "gemma3n"),
    *("gemma2", "gpt2", "rwkv7", "gpt_oss", "jamba", "internlm2"),
)

# The families whose rows run one at a time, and why.
ALONE = {
    "afm7": "computes rows of different lengths differently",
    "deepseek_v41": "uses a LayerCache",
    "gpt_bigcode": "computes rows of different lengths differently",
    "internlm2": "computes rows of different lengths differently",
    "internlm3": "computes rows of different lengths differently",
    "llama4": "attends within chunks",
    "longcat_flash_ngram": "computes rows of different lengths differently",
    "minimax_m3_vl": "groups tokens by their place in the window",
    "phi3small": "groups tokens by their place in the window",
}


# The families whose rows copy what they begin with: those that compute attention in a way of their
# own, or have none to more than a few tokens.
COPIED = {
    *("bailing_hybrid", "bailing_moe_v3", "deepseek_v3", "deepseek_v32", "gemma2", "gemma4"),
    *("gemma4_text", "glm4_moe_lite", "glm_moe_dsa", "iquestloopcoder", "kimi_k25", "kimi_k3"),
    *("kimi_linear", "kimi_vl", "longcat_flash", "mamba", "mamba2", "mistral4", "plamo"),
    *("plamo2", "recurrent_gemma", "rwkv7"),
}


class Alone:
    """Rows side by side, and each of them in a cache of its own, to compare with."""

    def __init__(self, network: nn.Module, window: int | None = WINDOW) -> None:
        self.network = network
        self.window = window
        self.rows = RowsCache(network, self.make(), window)
        self.alone: dict[int, Cache] = {}
        self._numbers = np.random.default_rng(0)

    def prompt(self, tokens: int) -> list[int]:
        return self._numbers.integers(2, 60, tokens).tolist()

    def step(self) -> None:
        self.check_step(self.prompt(self.rows.seats))

    def make(self) -> Cache:
        return make_cache(self.network, self.window, 0 if self.window is None else KEEP)

    def read(self, ids: list[int], start: Cache | None = None) -> Cache:
        own = self.make() if start is None else start.fork()
        if len(ids):
            self.network(mx.array(ids)[None], cache=own)
            mx.eval([layer.state for layer in own])
        return own

    def join(self, ids: list[int], start: Cache | None = None) -> int:
        """After the tokens in `start`, which the rows may share."""
        own = self.read(ids, start)
        seat = self.rows.add(own, start=start)
        self.alone[seat] = own
        return seat

    def join_together(self, texts: list[list[int]], start: Cache) -> None:
        arrays = [np.array(ids, np.int32) for ids in texts]
        read = prefill_together(self.network, start.fork(), arrays, shares=True)
        for ids, (rows, row) in zip(texts, read, strict=True):
            tokens = windows(start)[0].total + len(ids)
            self.alone[self.rows.add(rows, row, tokens, start)] = self.read(ids, start)

    def leave(self, seat: int) -> None:
        self.rows.leave(seat)
        del self.alone[seat]

    def compact(self) -> None:
        kept = self.rows.compact()
        self.alone = {index: self.alone[seat] for index, seat in enumerate(kept)}

    def check_step(self, tokens: list[int]) -> None:
        """Compare one step; `tokens` has one for each seat."""
        self.rows.begin_step()
        together = self.network(mx.array(tokens)[:, None], cache=self.rows)[:, -1, :]
        for seat, own in self.alone.items():
            expected = self.network(mx.array([[tokens[seat]]]), cache=own)[:, -1, :]
            check_close(together[seat : seat + 1], expected)

    def check_moved_out(self, seat: int, ids: list[int]) -> None:
        """Compare a row that has left the others."""
        own = self.make()
        self.rows.move_to(own, seat)
        for id_ in ids:
            expected = self.network(mx.array([[id_]]), cache=self.alone[seat])[:, -1, :]
            check_close(self.network(mx.array([[id_]]), cache=own)[:, -1, :], expected)


def check_close(logits: mx.array, expected: mx.array) -> None:
    error: Any = (mx.abs(logits - expected).max() / mx.abs(expected).max()).item()
    assert error < 1e-3


@cache
def network_of(family: str) -> nn.Module:
    return build_family(family)


def window_of(network: nn.Module) -> int | None:
    """Bounded, unless the family cannot be."""
    try:
        make_cache(network, WINDOW, KEEP)
    except CacheError:
        return None
    return WINDOW


def every_family_but(*others: str) -> pytest.MarkDecorator:
    """All families; those that are not in KINDS are slow."""
    families = sorted(set(CONFIGS) - METAL_ONLY - {*others})
    marks = {family: [] if family in KINDS else [pytest.mark.slow] for family in families}
    params = [pytest.param(family, marks=marks[family]) for family in families]
    return pytest.mark.parametrize("family", params)


@every_family_but()
def test_rows_that_come_and_go_compute_what_they_would_alone(family: str) -> None:
    try:
        network = network_of(family)
    except ModelUnsupported:
        pytest.skip("this family needs another package")
    window = window_of(network)

    def make() -> Cache:
        return make_cache(network, window, 0 if window is None else KEEP)

    reason, shares = find_support(network, make, window)
    if family in ALONE:
        assert reason is not None
        assert ALONE[family] in reason
        assert not shares
        return
    assert reason is None
    both = Alone(network, window)
    for length in (5, 1, 17):
        both.join(both.prompt(length))
    both.step()
    both.leave(1)
    both.join(both.prompt(9))
    both.step()
    both.leave(0)
    both.compact()
    both.step()
    both.join(both.prompt(3))
    both.join([])
    for _ in range(12):
        both.step()
    both.check_moved_out(2, both.prompt(WINDOW))


@every_family_but(*ALONE)
def test_rows_share_their_start_or_copy_it_and_compute_what_they_would_alone(family: str) -> None:
    try:
        network = network_of(family)
    except ModelUnsupported:
        pytest.skip("this family needs another package")
    both = Alone(network, window_of(network))
    assert compute_alike(network, both.make, both.window, shares=True) == (family not in COPIED)
    if family in COPIED:
        return
    short, long = both.read(both.prompt(3)), both.read(both.prompt(20))
    both.join(both.prompt(5), short)
    both.step()
    if most_together(short) != 0:
        both.join_together([both.prompt(4), both.prompt(2), both.prompt(1)], short)
    both.join([], short)
    both.step()
    both.join(both.prompt(9))
    both.step()
    both.join(both.prompt(2), long)
    both.step()
    for seat in sorted(both.alone)[:-2]:
        both.leave(seat)
    both.step()
    both.compact()
    seat = both.join(both.prompt(6), long)
    both.join(both.prompt(1), long)
    assert not both.rows.begins(short)
    assert both.rows.begins(long)
    assert any(leaf.shared is not None for leaf in leaves(both.rows) if hasattr(leaf, "shared"))
    for _ in range(3):
        both.step()
    both.check_moved_out(seat, both.prompt(WINDOW))


@settings(max_examples=20)
@given(data=st.data(), family=st.sampled_from(["llama", "gemma3"]))
def test_any_order_of_joining_leaving_and_stepping(data: st.DataObject, family: str) -> None:
    both = Alone(network_of(family), data.draw(st.sampled_from([None, 24, 100])))
    most = 40 if both.window is None else both.window
    numbers = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    both.join(numbers.integers(2, 60, data.draw(st.integers(0, most - 1))).tolist())
    for _ in range(data.draw(st.integers(1, 12))):
        full = [seat for seat, own in both.alone.items() if windows(own)[0].total >= most]
        for seat in full:
            both.leave(seat)
        act = data.draw(st.sampled_from(["join", "leave", "compact", "step", "step"]))
        if act == "join":
            both.join(numbers.integers(2, 60, data.draw(st.integers(0, most - 1))).tolist())
        elif act == "leave" and both.alone:
            both.leave(data.draw(st.sampled_from(sorted(both.alone))))
        elif act == "compact" and both.alone:
            both.compact()
        elif act == "step" and both.rows.seats:
            both.check_step(numbers.integers(2, 60, both.rows.seats).tolist())


def test_a_seat_forgets_the_row_before_even_if_it_held_nan() -> None:
    """A masked NaN still spreads: zero times NaN is NaN."""
    both = Alone(network_of("llama"))
    seat = both.join(list(range(2, 40)))
    both.join([3, 4])
    for layer in both.rows:
        layer.values[seat] = float("nan")
    both.leave(seat)
    assert both.join([5, 6]) == seat
    both.check_step([7, 8])


def test_buffers_shrink_after_a_long_row_has_left() -> None:
    both = Alone(network_of("llama"), None)
    long = both.join(np.random.default_rng(0).integers(2, 60, 700).tolist())
    both.join([2, 3, 4])
    size = both.rows[1].nbytes
    both.leave(long)
    both.join([5])
    for _ in range(STEPS + 1):
        both.step()
    assert both.rows[1].nbytes < size / 4
