"""A tiny model of one of mlx-lm's families, in one form, and how far off its answers are."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlxchat  # noqa: F401  first, to prepare OpenBLAS and mlx-lm's modules

# isort: split

import mlx.core as mx
import numpy as np

from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache
from mlxchat.errors import CacheError
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from scripts.families import write_family

WINDOW, KEEP, STEP = 16, 4, 12


class Refused(Exception):
    """This family does not support a way in, for the reason given."""


@dataclass(slots=True)
class Case:
    """A tiny model of one family in one form, loaded in a thread as chat does."""

    family: str
    form: str
    directory: Path
    model: Model = field(init=False)
    empty: dict[int, Cache] = field(default_factory=dict)
    errors: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        write_family(self.directory / "model", self.family, self.form)
        self.model = self.load()

    def load(self) -> Model:
        """Load the model as a new process would."""
        with ThreadPoolExecutor(1) as worker:
            return worker.submit(
                load_directory, self.directory / "model", self.family, dtype="stored", notify=print
            ).result()

    def cache(self, window: int = WINDOW) -> Cache:
        """An empty cache with a window. Raises Refused."""
        try:
            return self.cache_or_error(window)
        except CacheError as error:
            raise Refused(str(error)) from error

    def cache_or_error(self, window: int = WINDOW) -> Cache:
        """An empty cache; the model's ropes are tried only once. Raises CacheError."""
        if window not in self.empty:
            self.empty[window] = make_cache(self.model.network, window, KEEP)
        return self.empty[window].fork()

    def logits(self, cache: Sequence[Any], tokens: Sequence[int]) -> np.ndarray:
        """Logits of the last token, `(V,)`."""
        ids = mx.array(np.array(tokens, np.int32))[None]
        return np.array(self.model.network(ids, cache=cache)[0, -1].astype(mx.float32))

    def compare(self, way: str, found: np.ndarray, expected: np.ndarray) -> None:
        """Record the relative error; some models forbid tokens."""
        assert not np.isnan(found).any()
        finite = np.isfinite(expected)
        assert np.array_equal(finite, np.isfinite(found))
        size = np.linalg.norm(expected[finite])
        off = np.linalg.norm(found[finite] - expected[finite])
        self.errors.setdefault(way, []).append(float(off / max(size, 1e-6)))
