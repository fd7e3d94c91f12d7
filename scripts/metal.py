"""Imitates how Metal differs from MLX's CPU backend, for tests and the table of scripts.families.

Metal adds a rope's offset to an unsigned position, rotates in float32 and rounds once, and runs
experts in half precision. Metal accepts a negative offset for a single token in contiguous rows;
this never does, because strides are not visible here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import mlx.core as mx

UNSIGNED = 2**32


@contextmanager
def imitated() -> Iterator[None]:
    """Make every model compute as on Metal while the body runs."""
    experts = _in_float32(mx.gather_mm)
    with mock.patch.object(mx.fast, "rope", rope), mock.patch.object(mx, "gather_mm", experts):
        yield


def rope(
    x: mx.array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: int | mx.array,
    freqs: mx.array | None = None,
) -> mx.array:
    """Rotate `x: (…, T, D)` as Metal's kernels do."""
    positions = mx.arange(x.shape[-2], dtype=mx.float32) + _unsigned(offset)
    inverse = _inverse_frequencies(dims, base) if freqs is None else 1 / freqs.astype(mx.float32)
    angles = (positions * scale)[..., None] * inverse
    wide = x.astype(mx.float32)
    turned = _turned(wide[..., :dims], mx.cos(angles), mx.sin(angles), traditional)
    return mx.concatenate([turned, wide[..., dims:]], axis=-1).astype(x.dtype)


def _unsigned(offset: int | mx.array) -> Any:
    if isinstance(offset, mx.array):
        positions = mx.where(offset < 0, offset.astype(mx.float32) + UNSIGNED, offset)
        # One offset per sequence: (B, 1, T).
        return positions if offset.ndim == 0 else positions[:, None, None]
    return offset % UNSIGNED


def _inverse_frequencies(dims: int, base: float | None) -> mx.array:
    assert base is not None
    return base ** (-mx.arange(dims // 2, dtype=mx.float32) * 2 / dims)


def _turned(x: mx.array, cosine: mx.array, sine: mx.array, traditional: bool) -> mx.array:
    if traditional:
        real, imaginary = x[..., ::2], x[..., 1::2]
    else:
        real, imaginary = mx.split(x, 2, axis=-1)
    turned = [real * cosine - imaginary * sine, real * sine + imaginary * cosine]
    if traditional:
        return mx.stack(turned, axis=-1).reshape(x.shape)
    return mx.concatenate(turned, axis=-1)


def _in_float32(multiply: Any) -> Any:
    """MLX's CPU backend runs unquantized experts only in float32."""

    def gather_mm(a: mx.array, b: mx.array, *arguments: Any, **options: Any) -> mx.array:
        wide = multiply(a.astype(mx.float32), b.astype(mx.float32), *arguments, **options)
        return wide.astype(a.dtype)

    return gather_mm
