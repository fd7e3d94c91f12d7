"""Shifting keys: moving cached keys to other RoPE positions without computing them again.

RoPE is a rotation, so `rope(rope(k, p), d) == rope(k, p + d)`. Which rotation a layer's keys were
given is read off the model's modules and then verified, by numbers, on keys that the model itself
makes: a layer whose keys do not obey is not shifted. When to shift, and by how much, is `window`'s
business; which layers there are is `build`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import mlx.core as mx
from mlx import nn

# Keys at these two positions are compared, in float32, to within TOLERANCE of the keys' size: far
# enough apart that the ropes of two bases cannot be taken for each other.
NEAR, FAR, TOLERANCE = 0, 1000, 1e-3

# One layer's keys and values of one token, `(1, H_kv, 1, D)`.
Stored = tuple[mx.array, mx.array]


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

    def parts(self) -> tuple[Any, ...]:
        """The fields, in order: numbers and arrays only."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def _name(self) -> tuple[Any, ...]:
        """What tells two rotations apart."""
        freqs = None if self.freqs is None else str(self.freqs.tolist())
        return (self.dims, self.traditional, self.base, self.scale, freqs, self.limit)


NO_POSITIONS = KeyShift(dims=0, traditional=False, base=None, scale=1.0)


def learned_positions(model: nn.Module) -> int | None:
    """How many positions the model has learned a vector for, as GPT-2 has; None for all others."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] == "wpe":
            return module.weight.shape[0]
    return None


def trial_position(model: nn.Module) -> int:
    """The far position at which to try the model's ropes: FAR, or where they still are the same."""
    return min([FAR, *(rope.limit // 2 for rope in _distinct_ropes(model) if rope.limit)])


def find_key_shifts(
    model: nn.Module, near: Sequence[Stored | None], far: Sequence[Stored | None], distance: int
) -> list[KeyShift | None]:
    """One verified KeyShift for each of the model's windows; None where there is none.

    `near` and `far` are what each window holds of one and the same token, the first that the model
    ever saw, once at the position NEAR and once `distance` behind it. Nothing but its position can
    tell such a token's keys apart, whatever layers it has come through: so the first, shifted, must
    be the second. That finds out what a configuration only claims: layers without rope, other
    layouts, ropes that nothing uses.
    """
    ropes = _distinct_ropes(model)
    gains = _key_norm_weights(model)
    return [
        # A window that the model does not use holds nothing to be moved.
        NO_POSITIONS if a is None or b is None else _find_shift(a, b, distance, ropes, gains)
        for a, b in zip(near, far, strict=True)
    ]


def _distinct_ropes(model: nn.Module) -> list[KeyShift]:
    found: dict[tuple[Any, ...], KeyShift] = {}
    for _, module in model.named_modules():
        rope = _read_rope(module)
        if rope is not None:
            found.setdefault(rope._name, rope)
    return list(found.values())


def _read_rope(module: Any) -> KeyShift | None:
    """The rotation of mlx's and mlx-lm's rope modules, without their scaling of the keys.

    YaRN's and longrope's modules also multiply by a constant, which a cached key has been already.
    """
    for name in ("_freqs", "_rope_freqs"):
        freqs = getattr(module, name, None)
        if isinstance(freqs, mx.array) and freqs.ndim == 1:
            traditional = bool(getattr(module, "traditional", False))
            return KeyShift(2 * freqs.size, traditional, None, 1.0, freqs)
    if isinstance(module, nn.RoPE):
        return KeyShift(module.dims, module.traditional, module.base, module.scale)
    # Dynamic NTK: the base that it was made with holds up to its trained length.
    limit = getattr(module, "max_position_embeddings", None)
    base = getattr(module, "original_base", getattr(module, "base", None))
    if hasattr(module, "dims") and base is not None and isinstance(limit, int):
        return KeyShift(module.dims, module.traditional, base, 1.0, limit=limit)
    return None


def _key_norm_weights(model: nn.Module) -> list[mx.array]:
    """Weights of the norms that some layers put behind their ropes."""
    return [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.RMSNorm) and "k" in name.rpartition(".")[2].partition("_")[0]
    ]


def _find_shift(
    first: Stored,
    second: Stored,
    distance: int,
    ropes: Sequence[KeyShift],
    gains: Sequence[mx.array],
) -> KeyShift | None:
    keys_moved = not alike(first[0], second[0])
    values_moved = not alike(first[1], second[1])
    if keys_moved and values_moved:
        return None
    if not keys_moved and not values_moved:
        return NO_POSITIONS
    near, far = (first[1], second[1]) if values_moved else (first[0], second[0])
    # In half precision the keys themselves are only so good.
    tolerance = TOLERANCE if near.dtype == mx.float32 else 0.05
    near, far = near.astype(mx.float32), far.astype(mx.float32)
    for shift in _variants(ropes, near.shape[-1], gains):
        if alike(shift(near, distance), far, tolerance):
            return replace(shift, in_values=values_moved)
    return None


def _variants(
    ropes: Sequence[KeyShift], head_dim: int, gains: Sequence[mx.array]
) -> Iterator[KeyShift]:
    """All that a layer could make of the ropes, the usual first."""
    fitting = [rope for rope in ropes if rope.dims <= head_dim]
    for rope in fitting:
        yield rope
    for rope in fitting:
        for start in {0, head_dim - rope.dims}:
            for traditional in (rope.traditional, not rope.traditional):
                yield replace(rope, start=start, traditional=traditional)
    for gain in gains:
        if gain.shape == (head_dim,):
            for rope in fitting:
                yield replace(rope, gain=gain)


def alike(a: mx.array, b: mx.array, tolerance: float = 1e-5) -> bool:
    """Whether two arrays differ by no more than `tolerance`, relative to the larger's size."""
    if a.size == 0:
        return True
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    return bool((mx.abs(a - b).max() <= tolerance * mx.abs(b).max()).item())
