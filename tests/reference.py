"""A plain, obviously correct reference for a bounded cache: a list of single tokens. It is fed one
token at a time. Each token is appended and, once the window is full, the oldest that is not kept is
deleted; then it attends to the whole list. Keys are rotated as complex numbers, from the position
they were given at to their current one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.models.cache import ArraysCache, RotatingKVCache

from mlxchat.cache import build
from mlxchat.cache.layers import Cache, leaves, recurrent_states, replaced, tokens_held, windows
from mlxchat.cache.window import REANCHOR_EVERY
from mlxchat.errors import CacheError


def restored(layer: Any) -> Any:
    """A window or recurrent state as it is after it was saved."""
    if isinstance(layer, ArraysCache):
        cells, *others = layer.state
        return ArraysCache.from_state(([*cells], *others))
    again = layer.copy()
    again.restore(layer.entries, layer.placement)
    return again


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rope by its definition, on `dims` dimensions from `start` on: pairs of them, adjacent
    (traditional) or half of `dims` apart, rotated as complex numbers."""

    dims: int
    base: float = 10_000.0
    traditional: bool = False
    start: int = 0
    in_values: bool = False

    def __call__(self, key: mx.array, distance: int) -> mx.array:
        if distance == 0 or self.dims == 0:
            return key
        x = np.array(key).astype(np.float64)
        part = x[..., self.start : self.start + self.dims]
        half = self.dims // 2
        real = part[..., ::2] if self.traditional else part[..., :half]
        imaginary = part[..., 1::2] if self.traditional else part[..., half:]
        angles = distance * self.base ** (-np.arange(half) / half)
        turned = (real + 1j * imaginary) * np.exp(1j * angles)
        if self.traditional:
            part[..., ::2], part[..., 1::2] = turned.real, turned.imag
        else:
            part[..., :half], part[..., half:] = turned.real, turned.imag
        return mx.array(x.astype(np.float32))


NO_ROTATION = Rotation(0)


class ReferenceCache:
    """One layer's keys and values as a list of single tokens, each with its original position.

    `anchor` is the position of the first kept token, which the real cache chooses, within bounds.
    All other tokens have consecutive positions up to the next token's.
    """

    def __init__(self, window: int, keep: int, rotation: Rotation) -> None:
        self.window, self.keep, self.rotation = window, keep, rotation
        self.offset, self.anchor = 0, 0
        self.entries: list[tuple[mx.array, mx.array, int]] = []

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        assert keys.shape[2] == 1, "the reference is fed one token at a time"
        self.entries.append((keys, values, self.offset))
        if len(self.entries) > self.window:
            del self.entries[self.keep]
        self.offset += 1
        # deepseek_v32 reads its cache's keys, and writes its values, which nothing reads.
        self.keys, self.values = self.keys_and_values()
        return self.keys, self.values

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        first = self.offset - len(self.entries)
        keys, values = [], []
        for i, (key, value, given) in enumerate(self.entries):
            position = (self.anchor if i < self.keep else first) + i
            if self.rotation.in_values:
                keys.append(key)
                values.append(self.rotation(value, position - given))
            else:
                keys.append(self.rotation(key, position - given))
                values.append(value)
        return mx.concatenate(keys, axis=2), mx.concatenate(values, axis=2)

    def rewind(self, n: int) -> None:
        del self.entries[max(len(self.entries) - n, 0) :]
        self.offset -= n

    def evict(self, start: int, stop: int) -> None:
        del self.entries[max(start, 0) : max(stop, 0)]


def reference_cache(
    model: nn.Module, window: int, keep: int, rotations: Sequence[Rotation]
) -> list[Any]:
    """A reference for each window of the model, and mlx-lm's own recurrent states."""
    remaining = iter(rotations)

    def layer(native: Any) -> Any:
        if isinstance(native, ArraysCache):
            return native
        if isinstance(native, RotatingKVCache) and native.max_size <= window:
            return ReferenceCache(native.max_size, 0, next(remaining))
        return ReferenceCache(window, keep, next(remaining))

    return [replaced(native, layer) for native in build._native_cache(model)]


def references(cache: Sequence[Any]) -> list[ReferenceCache]:
    """The references in a model's cache."""
    return [leaf for leaf in leaves(cache) if isinstance(leaf, ReferenceCache)]


def logits(model: nn.Module, cache: Sequence[Any], tokens: Sequence[int]) -> np.ndarray:
    """The logits `(T, V)` of a step."""
    return np.array(model(mx.array([tokens]), cache=cache)[0].astype(mx.float32))


def step_both(model: nn.Module, cache: list[Any], reference: list[Any], step: list[int]) -> None:
    """Feed a step to both, then compare logits, storage and positions."""
    pairs = list(zip(windows(cache), references(reference), strict=True))
    found = logits(model, cache, step)
    for window, plain in pairs:
        # Only relative positions matter, since the real cache may have moved everything back.
        plain.anchor = window._anchor + plain.offset + len(step) - window.offset
    rows = [logits(model, reference, [token]) for token in step]
    np.testing.assert_allclose(found, np.concatenate(rows), atol=3e-4)
    for window, plain in pairs:
        assert window.keys is not None
        assert window.max_size == plain.window
        assert window.keys.shape[2] <= plain.window + len(step) - 1
        assert 0 <= window.gap <= (len(step) if len(step) > 1 else REANCHOR_EVERY)
        assert window.position_limit is not None
        assert window.offset < window.position_limit
    assert len({window.offset for window, _ in pairs}) == 1


def rewind_both(cache: Cache, reference: Sequence[ReferenceCache], n: int) -> None:
    """Take back n tokens, if there are any: a model with recurrent layers refuses."""
    if n and recurrent_states(cache):
        with pytest.raises(CacheError, match="recurrent layers"):
            cache.rewind(n)
        return
    cache.rewind(n)
    for plain in reference:
        plain.rewind(n)


def evict_both(cache: Cache, reference: Sequence[ReferenceCache], start: int, stop: int) -> None:
    """Evict the tokens, of which narrower layers have evicted some themselves."""
    held = tokens_held(cache)
    cache.evict(start, stop)
    for plain in reference:
        missing = held - len(plain.entries)
        plain.evict(start - missing, stop - missing)


def random_tokens(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, n).tolist()


def draft(network: nn.Module, cache: Cache, ids: list[int], accepted: int) -> np.ndarray:
    """Draft `ids`, accept the first of them, and return the logits of those."""
    cache.begin_draft()
    found = logits(network, cache, ids)
    if recurrent_states(cache) and accepted < len(ids):
        cache.drop_draft()
        if accepted == 1:
            logits(network, cache, ids[:1])
            return found[:1]
        cache.begin_draft()
        logits(network, cache, ids[:accepted])
    cache.accept(accepted)
    cache.settle()
    return found[:accepted]
