"""Original keys of a window's first tokens, from which every moved copy is made.

A key rotated repeatedly in half precision drifts. Tokens at the front of a window move often, so
their keys are stored once, at their original position, and each copy in the window is rotated from
those. `window` decides which tokens are stored, and at which positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import mlx.core as mx

from mlxchat.cache.positions import KeyShift


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
