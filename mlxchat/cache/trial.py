"""Find the rotation of each layer's keys by trial.

A configuration is only a claim, so the same token is run at several positions: a layer's rotation
is the one that turns the keys of one run into those of the others. This reveals layers without a
rope, unusual layouts and unused ropes. A layer whose keys follow no rotation is not shifted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxchat.cache.positions import NO_POSITIONS, KeyShift, learned_positions

# One token is run at NEAR and at FAR, and at FURTHER if several rotations fit FAR: ropes that agree
# over so large a step are interchangeable.
NEAR, FAR, FURTHER = 0, 1_000, 32_000

# Relative errors (L2 norm) below which two keys count as the same. On tiny random models of all
# mlx-lm families, the right rotation is off by at most 1e-6, 8e-4 and 7e-3.
TOLERANCES = {mx.float32: 1e-3, mx.float16: 3e-3, mx.bfloat16: 1.2e-2}

# A score that gives an attention sink no weight in any dtype.
NO_SINK = -1e4

# One layer's keys and values of one token, `(1, H_kv, 1, D)`; None if the model does not use it.
Stored = tuple[mx.array, mx.array] | None

# Returns the contents of the model's windows after its first token, run at a position.
RunAt = Callable[[int], Sequence[Stored]]


def find_key_shifts(model: nn.Module, run_at: RunAt) -> list[KeyShift | None]:
    """One verified KeyShift per window of the model; None if no rotation fits.

    `run_at(position)` returns what each window holds of one token, the first in the model's cache,
    so that its keys differ only by position.
    """
    ropes = _distinct_ropes(model)
    far = trial_position(model)
    runs = run_at(NEAR), run_at(far)
    moved = _moved_slots(*runs)
    plain = _possible(moved, runs[0], lambda head_dim: _placed(ropes, head_dim))
    fitting = _fitting(plain, *runs, far - NEAR)
    if not all(fitting):
        gains = _key_norm_weights(model)
        weighted = _possible(moved, runs[0], lambda head_dim: _gained(ropes, head_dim, gains))
        # Only if no plain rope fits: each layer may have a different gain.
        untried = [[] if shifts else more for shifts, more in zip(fitting, weighted, strict=True)]
        found = _fitting(untried, *runs, far - NEAR)
        fitting = [shifts or more for shifts, more in zip(fitting, found, strict=True)]
    if any(len(shifts) > 1 for shifts in fitting):
        further = trial_position(model, FURTHER)
        fitting = _fitting(fitting, runs[0], run_at(further), further - NEAR)
    return [shifts[0] if shifts else None for shifts in fitting]


def trial_position(model: nn.Module, wanted: int = FAR) -> int:
    """`wanted`, or the furthest position up to which the model's ropes do not change."""
    limits = [rope.limit // 2 for rope in _distinct_ropes(model) if rope.limit]
    learned = learned_positions(model)
    return min([wanted, *limits, *([] if learned is None else [learned - 1])])


@contextmanager
def without_sinks(model: nn.Module) -> Iterator[None]:
    """Remove the weight of attention sinks during the body.

    With a sink, even a lone token's weight depends on the rounding of its rotated key, and later
    layers differ between two positions by more than their own rotation.
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
    ropes = filter(None, map(_read_rope, model.modules()))
    return list({_name(rope): rope for rope in ropes}.values())


def _name(rope: KeyShift) -> tuple[Any, ...]:
    """Everything that distinguishes two ropes."""
    freqs = None if rope.freqs is None else str(rope.freqs.tolist())
    return (rope.dims, rope.traditional, rope.base, rope.scale, freqs, rope.limit)


def _read_rope(module: Any) -> KeyShift | None:
    """The rotation of an mlx or mlx-lm rope module, without its scaling of the keys.

    YaRN and longrope modules also multiply by a constant; cached keys already include it.
    """
    for name in ("_freqs", "_rope_freqs"):
        freqs = getattr(module, name, None)
        if isinstance(freqs, mx.array) and freqs.ndim == 1:
            traditional = bool(getattr(module, "traditional", False))
            return KeyShift(2 * freqs.size, traditional, None, 1.0, freqs)
    if isinstance(module, nn.RoPE):
        return KeyShift(module.dims, module.traditional, module.base, module.scale)
    # Dynamic NTK: the original base applies up to the trained length.
    limit = getattr(module, "max_position_embeddings", None)
    base = getattr(module, "original_base", getattr(module, "base", None))
    if hasattr(module, "dims") and base is not None and isinstance(limit, int):
        return KeyShift(module.dims, module.traditional, base, 1.0, limit=limit)
    return None


def _key_norm_weights(model: nn.Module) -> list[mx.array]:
    """Weights of norms that layers may apply after their ropes."""
    return [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.RMSNorm) and "k" in name.rpartition(".")[2].partition("_")[0]
    ]


def _moved_slots(near: Sequence[Stored], far: Sequence[Stored]) -> list[list[int]]:
    """Which of a window's keys (0) and values (1) differ between two positions; none if unused."""
    found = [
        [] if a is None or b is None else list(map(difference, a, b))
        for a, b in zip(near, far, strict=True)
    ]
    mx.eval(found)
    return [
        [slot for slot, each in enumerate(both) if a and _exceeds(each, a[slot])]
        for both, a in zip(found, near, strict=True)
    ]


def _possible(
    moved: Sequence[list[int]], near: Sequence[Stored], variants: Callable[[int], list[KeyShift]]
) -> list[list[KeyShift]]:
    """For each window, the `variants` for its head dimension that could have rotated it."""
    possible: list[list[KeyShift]] = []
    for slots, stored in zip(moved, near, strict=True):
        if stored is None or not slots:
            possible.append([NO_POSITIONS])
        elif slots in ([0], [1]):
            found = variants(stored[slots[0]].shape[-1])
            possible.append([replace(shift, in_values=slots == [1]) for shift in found])
        else:
            possible.append([])
    return possible


def _fitting(
    possible: Sequence[list[KeyShift]], near: Sequence[Stored], far: Sequence[Stored], distance: int
) -> list[list[KeyShift]]:
    """For each window, the possible shifts that fit, best first."""
    errors = [
        [_error(shift, a, b, distance) for shift in shifts]
        for shifts, a, b in zip(possible, near, far, strict=True)
    ]
    # In one go, because each evaluation waits for the device.
    mx.eval(errors)
    fitting: list[list[KeyShift]] = []
    for shifts, stored, each in zip(possible, near, errors, strict=True):
        ordered = sorted(zip(map(_number, each), shifts, strict=True), key=lambda pair: pair[0])
        tolerance = _tolerance(stored[0]) if stored is not None else 0.0
        fitting.append([shift for error, shift in ordered if error <= tolerance])
    return fitting


def _error(shift: KeyShift, near: Stored, far: Stored, distance: int) -> mx.array:
    """How far the shift is off between two positions, the larger of both directions, unevaluated.
    Computed in float32, so that the trial adds no rounding."""
    if near is None or far is None or shift.dims == 0:
        return mx.array(0.0)
    a, b = near[shift.in_values].astype(mx.float32), far[shift.in_values].astype(mx.float32)
    return mx.maximum(difference(shift(a, distance), b), difference(shift(b, -distance), a))


def _placed(ropes: Sequence[KeyShift], head_dim: int) -> list[KeyShift]:
    """All placements and layouts of the ropes in a head, the most common first."""
    return [
        replace(rope, start=start, traditional=traditional)
        for rope in ropes
        if rope.dims <= head_dim
        for start in dict.fromkeys((0, head_dim - rope.dims))
        for traditional in (rope.traditional, not rope.traditional)
    ]


def _gained(ropes: Sequence[KeyShift], head_dim: int, gains: Sequence[mx.array]) -> list[KeyShift]:
    """The ropes, each followed by each of the gains that norms could apply."""
    fitting = [gain for gain in gains if gain.shape == (head_dim,)]
    return [replace(rope, gain=g) for rope in ropes if rope.dims <= head_dim for g in fitting]


def alike(a: mx.array, b: mx.array) -> bool:
    """Whether two arrays are equal up to their dtype's rounding."""
    return not _exceeds(difference(a, b), a)


def difference(a: mx.array, b: mx.array) -> mx.array:
    """The relative difference of `a` from `b`."""
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    off, size = mx.linalg.norm((a - b).reshape(-1)), mx.linalg.norm(b.reshape(-1))
    return mx.where(size > 0, off / size, off)


def _exceeds(difference: mx.array, array: mx.array) -> bool:
    return _number(difference) > _tolerance(array)


def _number(scalar: mx.array) -> float:
    # MLX types every scalar as possibly complex.
    number: Any = scalar.item()
    return number


def _tolerance(array: mx.array) -> float:
    return TOLERANCES.get(array.dtype, TOLERANCES[mx.float32])
