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
    """Keys of one token at two positions, `distance` apart, and what may have rotated them.

    The keys are in float32, so that the trial adds no rounding of its own; `tolerance` is that of
    the dtype they had.
    """

    near: mx.array
    far: mx.array
    distance: int
    tolerance: float
    possible: Sequence[KeyShift]

    def errors(self) -> list[mx.array]:
        """How far each possible shift misses, in the worse of both directions: not evaluated."""
        return [mx.maximum(self._there(shift), self._back(shift)) for shift in self.possible]

    def _there(self, shift: KeyShift) -> mx.array:
        return difference(shift(self.near, self.distance), self.far)

    def _back(self, shift: KeyShift) -> mx.array:
        return difference(shift(self.far, -self.distance), self.near)


def find_key_shifts(model: nn.Module, run_at: RunAt) -> list[KeyShift | None]:
    """One verified KeyShift for each of the model's windows; None if there is none.

    `run_at(position)` returns what each window holds of one token, the first that the model ever
    sees, so that nothing but its position can tell its keys apart.
    """
    ropes = _distinct_ropes(model)
    far = trial_position(model)
    runs = run_at(NEAR), run_at(far)
    moved = _moved_slots(*runs)
    plain = _possible(moved, runs[0], lambda head_dim: _placed(ropes, head_dim))
    fitting = _fitting(plain, *runs, far - NEAR)
    if not all(fitting):
        gains = _key_norm_weights(model)
        weighted = _possible(moved, runs[0], lambda head_dim: _weighted(ropes, head_dim, gains))
        # Only if no rope alone fits: each layer may have a gain of its own.
        untried = [[] if shifts else more for shifts, more in zip(fitting, weighted, strict=True)]
        found = _fitting(untried, *runs, far - NEAR)
        fitting = [shifts or more for shifts, more in zip(fitting, found, strict=True)]
    if any(len(shifts) > 1 for shifts in fitting):
        further = trial_position(model, FURTHER)
        fitting = _fitting(fitting, runs[0], run_at(further), further - NEAR)
    return [shifts[0] if shifts else None for shifts in fitting]


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
    """What distinguishes two ropes."""
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
    """Weights of the norms that some layers apply after their ropes."""
    return [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.RMSNorm) and "k" in name.rpartition(".")[2].partition("_")[0]
    ]


def _moved_slots(near: Sequence[Stored], far: Sequence[Stored]) -> list[tuple[bool, bool] | None]:
    """Whether each window's keys and values differ between two positions; None if it has none."""
    found = [
        None if a is None or b is None else tuple(map(difference, a, b))
        for a, b in zip(near, far, strict=True)
    ]
    mx.eval([each for each in found if each is not None])
    return [
        None if each is None or a is None else (_exceeds(each[0], a[0]), _exceeds(each[1], a[1]))
        for each, a in zip(found, near, strict=True)
    ]


def _possible(
    moved: Sequence[tuple[bool, bool] | None],
    near: Sequence[Stored],
    variants: Callable[[int], list[KeyShift]],
) -> list[list[KeyShift]]:
    """All that each window could have been rotated by, of the `variants` for its head dimension."""
    return [
        _possible_of_one(slots, stored, variants) for slots, stored in zip(moved, near, strict=True)
    ]


def _possible_of_one(
    moved: tuple[bool, bool] | None, near: Stored, variants: Callable[[int], list[KeyShift]]
) -> list[KeyShift]:
    if moved is None or near is None or not any(moved):
        # Either nothing in it has a position, or the model does not use it.
        return [NO_POSITIONS]
    if all(moved):
        return []
    keys_moved, values_moved = moved
    head_dim = near[0 if keys_moved else 1].shape[-1]
    return [replace(shift, in_values=values_moved) for shift in variants(head_dim)]


def _fitting(
    possible: Sequence[list[KeyShift]], near: Sequence[Stored], far: Sequence[Stored], distance: int
) -> list[list[KeyShift]]:
    """Of each window's possible shifts those that fit, best first."""
    pairs = [
        _pair(shifts, a, b, distance) for shifts, a, b in zip(possible, near, far, strict=True)
    ]
    errors = [pair.errors() if pair is not None else [] for pair in pairs]
    # All at once, because each evaluation waits for the device.
    mx.eval(errors)
    return [
        shifts if pair is None else _within(pair, [_number(error) for error in each])
        for shifts, pair, each in zip(possible, pairs, errors, strict=True)
    ]


def _pair(possible: list[KeyShift], near: Stored, far: Stored, distance: int) -> Pair | None:
    """What a window's shifts are tried on; None if there is nothing to be found out."""
    if near is None or far is None or not any(shift.dims for shift in possible):
        return None
    slot = 1 if possible[0].in_values else 0
    a, b = near[slot].astype(mx.float32), far[slot].astype(mx.float32)
    return Pair(a, b, distance, _tolerance(near[slot]), possible)


def _within(pair: Pair, errors: Sequence[float]) -> list[KeyShift]:
    order = sorted(range(len(errors)), key=errors.__getitem__)
    return [pair.possible[i] for i in order if errors[i] <= pair.tolerance]


def _placed(ropes: Sequence[KeyShift], head_dim: int) -> list[KeyShift]:
    """All places and layouts that a head could have the ropes in, the usual first."""
    return [
        replace(rope, start=start, traditional=traditional)
        for rope in ropes
        if rope.dims <= head_dim
        for start in dict.fromkeys((0, head_dim - rope.dims))
        for traditional in (rope.traditional, not rope.traditional)
    ]


def _weighted(
    ropes: Sequence[KeyShift], head_dim: int, gains: Sequence[mx.array]
) -> list[KeyShift]:
    """The ropes with each of the gains that norms could put after them."""
    return [
        replace(rope, gain=gain)
        for rope in ropes
        if rope.dims <= head_dim
        for gain in gains
        if gain.shape == (head_dim,)
    ]


def alike(a: mx.array, b: mx.array) -> bool:
    """Whether two arrays are the same but for the rounding of their dtype."""
    return not _exceeds(difference(a, b), a)


def difference(a: mx.array, b: mx.array) -> mx.array:
    """By how much two arrays differ, relative to the second."""
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    off, size = mx.linalg.norm((a - b).reshape(-1)), mx.linalg.norm(b.reshape(-1))
    return mx.where(size > 0, off / size, off)


def _exceeds(difference: mx.array, array: mx.array) -> bool:
    return _number(difference) > _tolerance(array)


def _number(scalar: mx.array) -> float:
    # MLX declares every scalar as possibly complex.
    number: Any = scalar.item()
    return number


def _tolerance(array: mx.array) -> float:
    return TOLERANCES.get(array.dtype, TOLERANCES[mx.float32])
