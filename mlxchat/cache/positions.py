"""Shifting keys: moving cached keys to other RoPE positions without recomputing them.

RoPE is a rotation, so `rope(rope(k, p), d) == rope(k, p + d)`. `trial` finds the rotation that a
layer applies; `window` decides when to shift and how far.

A key rotated repeatedly in half precision drifts. Tokens at the front of a window move often, so
their original keys are stored once, and each copy in the window is rotated from those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
        # Rope counts positions along the token axis. With each token as its own sequence, all of
        # them are rotated by `distance`.
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


@dataclass(frozen=True, slots=True)
class KeyRun:
    """Keys `(B, H_kv, T, D)` of T tokens at consecutive positions from `position`."""

    keys: mx.array
    position: int

    @property
    def tokens(self) -> int:
        """T."""
        return self.keys.shape[2]

    def between(self, start: int, stop: int) -> KeyRun:
        return KeyRun(self.keys[..., start:stop, :], self.position + start)


@dataclass(frozen=True, slots=True)
class Originals:
    """The original keys of a window's first tokens, in temporal order. Immutable."""

    runs: tuple[KeyRun, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(run.tokens for run in self.runs)

    @property
    def nbytes(self) -> int:
        return sum(run.keys.nbytes for run in self.runs)

    def extended(self, keys: mx.array, position: int) -> Originals:
        """With the keys of the next tokens added, which are at `position` now."""
        return Originals((*self.runs, KeyRun(keys, position)))

    def without(self, start: int, stop: int) -> Originals:
        """With tokens `start` to `stop` removed."""
        return Originals((*self._between(0, start), *self._between(stop, self.tokens)))

    def moved(self, start: int, stop: int, position: int, shift: KeyShift) -> list[mx.array]:
        """The keys of tokens `start` to `stop`, rotated to the positions from `position`."""
        moved: list[mx.array] = []
        for run in self._between(start, stop):
            moved.append(shift(run.keys, position - run.position))
            position += run.tokens
        return moved

    def _between(self, start: int, stop: int) -> Iterator[KeyRun]:
        begin = 0
        for run in self.runs:
            first, last = max(start - begin, 0), min(stop - begin, run.tokens)
            if first < last:
                yield run.between(first, last)
            begin += run.tokens

    @property
    def keys(self) -> mx.array | None:
        """All keys, `(B, H_kv, T, D)`, in one array."""
        if len(self.runs) < 2:
            return self.runs[0].keys if self.runs else None
        return mx.concatenate([run.keys for run in self.runs], axis=2)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Token count and position of each run, which turn `keys` back into runs."""
        return tuple((run.tokens, run.position) for run in self.runs)

    @classmethod
    def placed(cls, keys: mx.array | None, spans: Iterable[tuple[int, int]]) -> Originals:
        """The inverse of `keys` and `spans`."""
        runs: list[KeyRun] = []
        start = 0
        for tokens, position in spans:
            assert keys is not None
            runs.append(KeyRun(keys[..., start : start + tokens, :], position))
            start += tokens
        return cls(tuple(runs))


def learned_positions(model: nn.Module) -> int | None:
    """Number of positions if the model learned an embedding for each, as GPT-2 did; else None."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] == "wpe":
            return module.weight.shape[0]
    return None
