"""Shifting keys: moving cached keys to other RoPE positions without computing them again.

RoPE is a rotation, so `rope(rope(k, p), d) == rope(k, p + d)`. Which rope a layer rotates its keys
with is found on the model itself and then verified, by numbers: a layer that fails is not shifted.
When to shift, and by how much, is `window`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn

# A shift of this many positions is compared with the model's own rope, in float32, to within
# TOLERANCE of the keys' size.
TRIAL_POSITION, TRIAL_SHIFT, TOLERANCE = 37, 1000, 1e-3


@dataclass(frozen=True, slots=True)
class KeyShift:
    """The rotation of one layer's keys, as `mx.fast.rope` takes it.

    `dims` of the head's dimensions are rotated: none in a layer without positions. Either `base`
    is given or `freqs: (dims / 2,)`.
    """

    dims: int
    traditional: bool
    base: float | None
    scale: float
    freqs: mx.array | None = None

    def __call__(self, keys: mx.array, distance: int) -> mx.array:
        """Return `keys: (B, H, T, D)` moved by `distance` positions, all by the same, or back."""
        if distance == 0 or self.dims == 0:
            return keys
        batch, heads, tokens, dim = keys.shape
        # Rope counts positions along the token axis: with every token a sequence of its own, all
        # of them stand at `distance`.
        alone = keys.swapaxes(1, 2).reshape(batch * tokens, heads, 1, dim)
        moved = mx.fast.rope(
            alone,
            self.dims,
            traditional=self.traditional,
            base=self.base,
            scale=self.scale,
            offset=distance,
            freqs=self.freqs,
        )
        return moved.reshape(batch, tokens, heads, dim).swapaxes(1, 2)


NO_POSITIONS = KeyShift(dims=0, traditional=False, base=None, scale=1.0)


def find_key_shifts(model: nn.Module, caches: Sequence[Any]) -> list[KeyShift | None]:
    """One verified KeyShift a layer, in the order of the model's caches; None where there is none.

    Runs the model once, on two tokens that cannot see each other: all that can tell their keys
    apart is their position, so a layer's second key must be its first, shifted by one. That finds
    out what a configuration only claims: layers without rope, other layouts, learned positions.
    Not to be asked of a model with recurrent layers, through which tokens see each other anyway.
    """
    nothing: list[KeyShift | None] = [None] * len(caches)
    layers = list(getattr(model, "layers", []))
    if len(layers) != len(caches):
        return nothing
    probes = [_Probe() for _ in caches]
    try:
        model(mx.array([[1, 1]]), cache=probes)
    except (AttributeError, TypeError, ValueError, IndexError):
        # The model wants more of a cache than a probe has: its keys stay where they are.
        return nothing
    return [
        probe.verified(_shift_of_layer(layer)) for layer, probe in zip(layers, probes, strict=True)
    ]


class _Probe:
    """A layer's cache that shows each token nothing but itself and remembers the keys."""

    def __init__(self) -> None:
        self.offset = 0
        self.keys: mx.array | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.keys = keys
        return keys, values

    def make_mask(self, N: int, **_: Any) -> mx.array:
        return mx.eye(N, dtype=mx.bool_)

    def verified(self, shift: KeyShift | None) -> KeyShift | None:
        """The shift if it makes the second key of the first, or one that does nothing if they are
        the same."""
        if self.keys is None:
            return None
        keys = self.keys.astype(mx.float32)
        first, second = keys[:, :, :1], keys[:, :, 1:]
        if _alike(first, second, 1e-5):
            return NO_POSITIONS
        # In half precision the keys themselves are only so good.
        tolerance = TOLERANCE if self.keys.dtype == mx.float32 else 0.05
        agrees = shift is not None and _alike(shift(first, 1), second, tolerance)
        return shift if agrees else None


def _alike(a: mx.array, b: mx.array, tolerance: float) -> bool:
    return bool((mx.abs(a - b).max() <= tolerance * mx.abs(b).max()).item())


def _shift_of_layer(layer: nn.Module) -> KeyShift | None:
    """The shift of the only rope in a layer, if it does as it should at a distance."""
    ropes = {id(m): m for _, m in layer.named_modules() if "rope" in type(m).__name__.lower()}
    if len(ropes) != 1:
        return None
    (rope,) = ropes.values()
    shift = _shift_of_rope(rope)
    return shift if shift is not None and _is_identical(rope, shift) else None


def _shift_of_rope(rope: Any) -> KeyShift | None:
    """Read the rotation off mlx's and mlx-lm's rope modules, without their scaling of the keys.

    YaRN's and longrope's modules also multiply by a constant, which a cached key has been already.
    """
    freqs = getattr(rope, "_freqs", None)
    if freqs is not None:
        dims = getattr(rope, "dims", None) or getattr(rope, "dim", None) or 2 * freqs.size
        return KeyShift(dims, getattr(rope, "traditional", False), None, 1.0, freqs)
    if isinstance(rope, nn.RoPE):
        return KeyShift(rope.dims, rope.traditional, rope.base, rope.scale)
    return None


def _is_identical(rope: Any, shift: KeyShift) -> bool:
    """Whether shifting a key agrees with the module's own rotation, near and far."""
    key = mx.random.normal((1, 1, 1, shift.dims), key=mx.random.key(0))
    near = rope(key, offset=TRIAL_POSITION)
    far = rope(key, offset=TRIAL_POSITION + TRIAL_SHIFT)
    return _alike(shift(near, TRIAL_SHIFT), far, TOLERANCE) and _alike(
        shift(far, -TRIAL_SHIFT), near, TOLERANCE
    )
