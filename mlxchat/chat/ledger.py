"""The ledger: the token ids in the cache, in order, so that its contents can be compared.

It follows the same rule as the cache's widest window, so both always have the same length. It does
not know what the tokens mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mlxchat.text.spans import TokenIds


@dataclass(slots=True)
class Ledger:
    """Token ids `(T,)` in temporal order. The first `keep` are never evicted. `window` bounds T
    between steps (None: unbounded). `overflowed` counts tokens evicted because it was full."""

    window: int | None
    keep: int
    ids: TokenIds = field(default_factory=lambda: np.empty(0, np.int32))
    overflowed: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, step: TokenIds) -> None:
        """Append the tokens of one step, evicting the oldest if the window is full."""
        surplus = 0 if self.window is None else max(len(self.ids) - (self.window - 1), 0)
        if surplus:
            self.evict(self.keep, self.keep + surplus)
            self.overflowed += surplus
        self.ids = np.concatenate([self.ids, step])

    def evict(self, start: int, stop: int) -> None:
        self.ids = np.concatenate([self.ids[:start], self.ids[stop:]])

    def rewind(self, n: int) -> None:
        self.ids = self.ids[: len(self.ids) - n]

    def common_prefix(self, ids: TokenIds) -> int:
        """Length of the common prefix."""
        n = min(len(self.ids), len(ids))
        different = np.flatnonzero(self.ids[:n] != ids[:n])
        return int(different[0]) if len(different) else n

    def earliest_span(self, start: int, tokens: int) -> int:
        """The first position after the kept tokens where evicting `tokens` tokens gives the same
        result as at `start`."""
        ids = self.ids
        while start > self.keep and ids[start - 1] == ids[start + tokens - 1]:
            start -= 1
        return start
