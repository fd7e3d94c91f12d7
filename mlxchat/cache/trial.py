"""Finding each layer's rotation by trial: what moves a key of the model to another position.

A configuration only claims; so one and the same token is run at several positions, and the rotation
that turns the keys of one run into those of the others is the layer's. That shows layers without a
rope, other layouts, ropes that nothing uses. A layer whose keys obey no rotation is not shifted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxchat.cache.positions import NO_POSITIONS, KeyShift, learned_positions

# One token is run at NEAR and at FAR, and at FURTHER if FAR leaves more than one rotation possible:
# ropes that agree on so large a step can stand in for each other.
NEAR, FAR, FURTHER = 0, 1_000, 32_000

# Relative errors, by L2 norm, up to which two keys are the same. On tiny random models of all of
# mlx-lm's families the right rotation is off by at most 1e-6, 8e-4 and 7e-3.
TOLERANCES = {mx.float32: 1e-3, mx.float16: 3e-3, mx.bfloat16: 1.2e-2}

# A score that leaves an attention sink no weight, in every dtype.
NO_SINK = -1e4

# One layer's keys and values of one token, `(1, H_kv, 1, D)`; None if the model gives it no tokens.
Stored = tuple[mx.array, mx.array] | None

# What the model's windows hold of its first token at a position.
RunAt = Callable[[int], Sequence[Stored]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Keys of one token at two positions, `distance` apart, whatever slot they are stored in."""

    near: mx.array
    far: mx.array
    distance: int

    def error(self, shift: KeyShift) -> float:
        """How far `shift` misses, in the worse of both directions."""
        there = difference(shift(self.near, self.distance), self.far)
        back = difference(shift(self.far, -self.distance), self.near)
        return max(there, back)


def find_key_shifts(model: nn.Module, run_at: RunAt) -> list[KeyShift | None]:
    """One verified KeyShift for each of the model's windows; None if there is none.

    `run_at(position)` returns what each window holds of one token, the first that the model ever
    sees, so that nothing but its position can tell its keys apart.
    """
    ropes = _distinct_ropes(model)
    gains = _key_norm_weights(model)
    far = trial_position(model)
    near_run, far_run = run_at(NEAR), run_at(far)
    shifts = [
        _possible_shifts(near, distant, far - NEAR, ropes, gains)
        for near, distant in zip(near_run, far_run, strict=True)
    ]
    if all(len(possible) < 2 for possible in shifts):
        return [possible[0] if possible else None for possible in shifts]
    further = trial_position(model, FURTHER)
    further_run = run_at(further)
    return [
        _best_shift(possible, near, distant, further - NEAR)
        for possible, near, distant in zip(shifts, near_run, further_run, strict=True)
    ]


def trial_position(model: nn.Module, wanted: int = FAR) -> int:
    """`wanted`, or the furthest position at which the model's ropes are still the same."""
    limits = [rope.limit // 2 for rope in _distinct_ropes(model) if rope.limit]
    learned = learned_positions(model)
    return min([wanted, *limits, *([] if learned is None else [learned - 1])])


@contextmanager
def without_sinks(model: nn.Module) -> Iterator[None]:
    """Take the weight of attention sinks away while the body runs.

    Beside a sink even a lone token's weight depends on how its rotated key was rounded; then the
    layers that follow differ between two positions by more than their own rotation.
    """
    sinks = [
        (module, name, array)
        for _, module in model.named_modules()
        for name, array in module.items()
        if "sink" in name and isinstance(array, mx.array) and array.ndim == 1
    ]
    for module, name, array in sinks:
        module[name] = mx.full(array.shape, NO_SINK, dtype=array.dtype)
    try:
        yield
    finally:
        for module, name, array in sinks:
            module[name] = array


def _distinct_ropes(model: nn.Module) -> list[KeyShift]:
    found: dict[tuple[Any, ...], KeyShift] = {}
    for _, module in model.named_modules():
        rope = _read_rope(module)
        if rope is not None:
            found.setdefault(_name(rope), rope)
    return list(found.values())


def _name(rope: KeyShift) -> tuple[Any, ...]:
    """What tells two ropes apart."""
    freqs = None if rope.freqs is None else str(rope.freqs.tolist())
    return (rope.dims, rope.traditional, rope.base, rope.scale, freqs, rope.limit)


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


def _possible_shifts(
    near: Stored,
    far: Stored,
    distance: int,
    ropes: Sequence[KeyShift],
    gains: Sequence[mx.array],
) -> list[KeyShift]:
    """All shifts that fit, best first; several only if none can be told from the others."""
    if near is None or far is None:
        # A window that the model does not use holds nothing to be moved.
        return [NO_POSITIONS]
    keys_moved, values_moved = (not alike(a, b) for a, b in zip(near, far, strict=True))
    if keys_moved and values_moved:
        return []
    if not keys_moved and not values_moved:
        return [NO_POSITIONS]
    pair = _pair(near, far, distance, in_values=values_moved)
    tolerance = _tolerance(near[0])
    variants = _variants(ropes, pair.near.shape[-1], gains)
    errors = [(pair.error(shift), shift) for shift in variants]
    fitting = sorted((each for each in errors if each[0] <= tolerance), key=lambda each: each[0])
    return [replace(shift, in_values=values_moved) for _, shift in fitting]


def _best_shift(
    possible: Sequence[KeyShift], near: Stored, far: Stored, distance: int
) -> KeyShift | None:
    if near is None or far is None or len(possible) < 2:
        return possible[0] if possible else None
    pair = _pair(near, far, distance, in_values=possible[0].in_values)
    return min(possible, key=pair.error)


def _pair(
    near: tuple[mx.array, mx.array],
    far: tuple[mx.array, mx.array],
    distance: int,
    *,
    in_values: bool,
) -> Pair:
    """The two keys in float32, so that the trial adds no rounding of its own."""
    slot = 1 if in_values else 0
    return Pair(near[slot].astype(mx.float32), far[slot].astype(mx.float32), distance)


def _variants(
    ropes: Sequence[KeyShift], head_dim: int, gains: Sequence[mx.array]
) -> list[KeyShift]:
    """All that a layer could make of the ropes, each once, the usual first."""
    fitting = [rope for rope in ropes if rope.dims <= head_dim]
    placed = [
        replace(rope, start=start, traditional=traditional)
        for rope in fitting
        for start in dict.fromkeys((0, head_dim - rope.dims))
        for traditional in (rope.traditional, not rope.traditional)
    ]
    weighted = [
        replace(rope, gain=gain) for gain in gains if gain.shape == (head_dim,) for rope in fitting
    ]
    return [*placed, *weighted]


def alike(a: mx.array, b: mx.array) -> bool:
    """Whether two arrays are the same but for the rounding of their dtype."""
    return difference(a, b) <= _tolerance(a)


def difference(a: mx.array, b: mx.array) -> float:
    """By how much two arrays differ, relative to the second: 0 if both are empty or zero."""
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    size: Any = mx.linalg.norm(b.reshape(-1)).item()
    off: Any = mx.linalg.norm((a - b).reshape(-1)).item()
    return off / size if size else off


def _tolerance(array: mx.array) -> float:
    return TOLERANCES.get(array.dtype, TOLERANCES[mx.float32])
