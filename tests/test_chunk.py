"""Llama 4's local layers, which attend within chunks: of 32 tokens here."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mlxchat.cache import build
from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import ChunkCache
from scripts.families import CONFIGS, build_family
from tests.reference import NO_ROTATION, ReferenceCache, logits, random_tokens

CHUNK = 32

# Without the global layers' scale of queries by position, which changes when keys move back.
TEXT = CONFIGS["llama4"]["text_config"] | {"attn_temperature_tuning": 0}
MODEL = build_family("llama4", text_config=TEXT | {"attention_chunk_size": CHUNK})


class ChunkReference(ReferenceCache):
    """One layer fed one token at a time. Its list is emptied at the beginning of a chunk, and holds
    the chunk's first `keep` tokens and the latest others."""

    def maybe_trim_front(self) -> None:
        if self.offset % CHUNK == 0:
            self.entries = []

    @property
    def start_position(self) -> int:
        # Makes the model's mask show everything in the list.
        return self.offset - min(len(self.entries), self.window - 1)


def steps(sizes: list[int], seed: int = 0) -> list[list[int]]:
    tokens = iter(random_tokens(sum(sizes), seed))
    return [[next(tokens) for _ in range(size)] for size in sizes]


@pytest.mark.parametrize(("window", "keep"), [(8, 0), (12, 4), (31, 4)])
def test_a_window_within_a_chunk_has_its_first_and_latest_tokens(window: int, keep: int) -> None:
    cache = _left_in_place(make_cache(MODEL, window, keep))
    reference = [
        ChunkReference(window, keep, NO_ROTATION) if isinstance(layer, ChunkCache) else layer
        for layer in _left_in_place(make_cache(MODEL, window, keep))
    ]
    for step in steps([1] * 100):
        expected = logits(MODEL, reference, step)
        np.testing.assert_allclose(logits(MODEL, cache, step), expected, atol=1e-4)
        assert all(layer.size() <= window for layer in cache)


def _left_in_place(cache: Sequence[Any]) -> Sequence[Any]:
    """Leave kept tokens at their positions, so that the reference needs no rotation."""
    for layer in cache:
        layer.shift = layer.position_limit = None
    return cache


@pytest.mark.parametrize("window", [6, 40])
def test_moving_back_keeps_chunk_boundaries(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    never = make_cache(MODEL, window, 4)
    monkeypatch.setattr(build, "POSITION_LIMIT", 128)
    often = make_cache(MODEL, window, 4)
    for step in steps([20] * 3 + [1] * 75 + [20] * 3 + [1] * 20):
        fixed = logits(MODEL, never, step)
        np.testing.assert_allclose(logits(MODEL, often, step), fixed, atol=1e-3)
    assert often[0].offset < 128 < never[0].offset
    assert often[0].offset % 32 == never[0].offset % 32
