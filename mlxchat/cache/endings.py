"""Several texts that begin alike and are read in one step: what follows the tokens they share."""

import mlx.core as mx

from mlxchat.cache.mask import Mask
from mlxchat.cache.placement import Entries


class EndingsWindow:
    """Keys and values `(B, H_kv, S, D)` of one layer, for B texts after the `shared` tokens, which
    are stored once.

    Implements what mlx-lm's models expect of a layer's cache in a single step, which must not evict
    any token. `attended` is set once the model has attended to the shared tokens.
    """

    def __init__(self, shared: Entries, max_size: int | None) -> None:
        self.shared = shared
        self.offset = shared.tokens
        self.max_size = max_size
        self.attended = False
        self._own = Entries(None, None)

    # Called by the model

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Take the own tokens and return them."""
        self._own = Entries(keys, values)
        self.offset += keys.shape[2]
        return keys, values

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """The own tokens, for layers that share this layer's cache."""
        assert self._own.keys is not None
        assert self._own.values is not None
        return self._own.keys, self._own.values

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Mask:
        """The mask of the own tokens."""
        check_not_narrower(window_size, self.max_size)
        if return_array:
            return mx.tri(N, dtype=mx.bool_)
        return None if N == 1 else "causal"

    def empty(self) -> bool:
        return self.offset == 0

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return [array for array in self._own if array is not None]

    # Its rows

    def part(self, row: int, start: int, stop: int) -> Entries:
        """Tokens `start` to `stop` of a row, the shared ones included."""
        shared = self.shared.tokens
        own = self._own.part(row, max(start - shared, 0), stop - shared)
        return own if start >= shared else self.shared.part(0, start).followed_by(own)


def check_not_narrower(window_size: int | None, max_size: int | None) -> None:
    """Raise ValueError for a view narrower than the window: all see the shared tokens."""
    if window_size is not None and (max_size is None or window_size < max_size):
        raise ValueError("a view narrower than the window")
