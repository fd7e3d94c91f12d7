"""Shifting keys: moving cached keys to other RoPE positions without recomputing them.

RoPE is a rotation, so `rope(rope(k, p), d) == rope(k, p + d)`. `trial` finds the rotation that a
layer applies; `window` decides when to shift and how far.
"""

from dataclasses import dataclass

import mlx.core as mx
from mlx import nn


@dataclass(frozen=True, slots=True)
class KeyShift:
    """The rotation of one layer's keys, with the parameters of `mx.fast.rope`.

    `dims` dimensions of the head are rotated, from `start` on; 0 in a layer without positions.
    Either `base` or `freqs: (dims / 2,)` is given. `in_values`: multi-head latent attention stores
    the rotated part of its keys in place of values. `gain: (D,)` multiplies the keys after the
    rotation. From `limit` positions on, the rope changes (dynamic NTK); None if it never does.
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
        """Return `keys: (B, H, T, D)`, all moved by `distance` positions; negative moves back."""
        if distance == 0 or self.dims == 0:
            return keys
        batch, heads, tokens, dim = keys.shape
        # Rope counts along the token axis: with each token a sequence, all move by `distance`.
        alone = keys.swapaxes(1, 2).reshape(batch * tokens, heads, 1, dim)
        if self.gain is not None:
            alone = alone.astype(mx.float32) / self.gain
        moved = mx.fast.rope(
            alone[..., self.start :] if self.start else alone,
            self.dims,
            traditional=self.traditional,
            base=self.base,
            # Back is forward with a negative scale: Metal treats the offset as unsigned.
            scale=self.scale if distance > 0 else -self.scale,
            offset=abs(distance),
            freqs=self.freqs,
        )
        if self.start:
            moved = mx.concatenate([alone[..., : self.start], moved], axis=-1)
        if self.gain is not None:
            moved = (moved * self.gain).astype(keys.dtype)
        # Contiguous: kernels that need it would copy a transposed view for every token.
        return mx.contiguous(moved.reshape(batch, tokens, heads, dim).swapaxes(1, 2))


NO_POSITIONS = KeyShift(dims=0, traditional=False, base=None, scale=1.0)


def learned_positions(model: nn.Module) -> int | None:
    """Number of positions if the model learned an embedding for each, as GPT-2 did; else None."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] == "wpe":
            return module.weight.shape[0]
    return None
