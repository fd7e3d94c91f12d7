"""Shifting keys: moving cached keys to other RoPE positions without computing them again.

RoPE is a rotation, so `rope(rope(k, p), d) == rope(k, p + d)`. Which rotation a layer's keys were
given is found out by `trial`. When to shift, and by how much, is `window`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import mlx.core as mx
from mlx import nn


@dataclass(frozen=True, slots=True)
class KeyShift:
    """The rotation of one layer's keys, as `mx.fast.rope` takes it.

    `dims` of the head's dimensions are rotated, from `start` on: none in a layer without positions.
    Either `base` is given or `freqs: (dims / 2,)`. Multi-head latent attention stores the rotated
    part of its keys where others store values: `in_values`. `gain: (D,)` is what the layer
    multiplies its keys with after rotating them. At `limit` positions and beyond the rope is
    another one (dynamic NTK); None where it is the same everywhere.
    """

    dims: int
    traditional: bool
    base: float | None
    scale: float
    freqs: mx.array | None = None
    start: int = 0
    in_values: bool = False
    gain: mx.array | None = None
    limit: int | None = None

    def __call__(self, keys: mx.array, distance: int) -> mx.array:
        """Return `keys: (B, H, T, D)` moved by `distance` positions, all by the same, or back."""
        if distance == 0 or self.dims == 0:
            return keys
        batch, heads, tokens, dim = keys.shape
        # Rope counts positions along the token axis: with every token a sequence of its own, all
        # of them stand at `distance`.
        alone = keys.swapaxes(1, 2).reshape(batch * tokens, heads, 1, dim)
        if self.gain is not None:
            alone = alone.astype(mx.float32) / self.gain
        moved = mx.fast.rope(
            alone[..., self.start :] if self.start else alone,
            self.dims,
            traditional=self.traditional,
            base=self.base,
            # Back is forward at the opposite scale: Metal takes an offset for an unsigned number.
            scale=self.scale if distance > 0 else -self.scale,
            offset=abs(distance),
            freqs=self.freqs,
        )
        if self.start:
            moved = mx.concatenate([alone[..., : self.start], moved], axis=-1)
        if self.gain is not None:
            moved = (moved * self.gain).astype(keys.dtype)
        # In rows: kernels that want them so would copy a transposed view for every token.
        return mx.contiguous(moved.reshape(batch, tokens, heads, dim).swapaxes(1, 2))

    def as_dict(self) -> dict[str, Any]:
        """The fields by name: numbers and arrays only."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


NO_POSITIONS = KeyShift(dims=0, traditional=False, base=None, scale=1.0)


def learned_positions(model: nn.Module) -> int | None:
    """How many positions the model has learned a vector for, as GPT-2 has; None for all others."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] == "wpe":
            return module.weight.shape[0]
    return None
