"""The model's window: the cache, and the ledger of the ids in it, so that its contents can be
compared. It knows nothing about what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from mlxchat.cache.layers import Cache, windows
from mlxchat.engine.prefill import OnHeld
from mlxchat.errors import CacheError
from mlxchat.models.model import Model
from mlxchat.text.encoder import TokenIds, common_length


@dataclass(slots=True)
class Ledger:
    """Token ids `(T,)` in temporal order. It follows the same rule as the cache's widest window, so
    both always have the same length. The first `keep` are never evicted. `window` bounds T
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


# Fills an empty cache with the known prefix of the ids, for a window of this size; returns the
# prefix's length, and a function to call with the ids of each step prefilled after it.
BeginPrefix = Callable[[Cache, TokenIds, int | None], tuple[int, OnHeld | None]]


@dataclass(slots=True)
class Window:
    """The ledger's ids always match the tokens in the cache. A cache without layers is empty and
    has to be made. The first `pinned` tokens come before all turns; `turns` are those it is for."""

    model: Model
    ledger: Ledger
    cache: Cache
    pinned: int
    turns: tuple[int, ...]
    # Gets the ids of each step prefilled after a known prefix.
    _record: OnHeld | None = field(default=None, init=False)

    @classmethod
    def make(cls, model: Model, size: int | None, pinned: int, turns: tuple[int, ...]) -> Window:
        keep = 0 if size is None else pinned
        return cls(model, Ledger(size, keep), model.make_cache(size, keep), pinned, turns)

    def fork(self) -> Window:
        """A copy-on-write copy."""
        return replace(self, ledger=replace(self.ledger), cache=self.cache.fork())

    def drop(self) -> None:
        """Drop the cache, whose contents cannot be trusted."""
        self.ledger, self.cache = Ledger(self.ledger.window, self.ledger.keep), Cache()

    @property
    def is_full(self) -> bool:
        return self.ledger.window is not None and len(self.ledger) >= self.ledger.window

    def become(
        self, ids: TokenIds, earlier: Iterable[Window] = (), begin: BeginPrefix | None = None
    ) -> int:
        """Hold the longest prefix of `ids: (T,)` that needs no computing, and at most T - 1; return
        its length. If a layer cannot be rewound, this is one of the `earlier` windows, or empty. An
        empty window is filled by `begin`."""
        self._record = None
        held = self._held_of(ids, earlier)
        if held or begin is None:
            return held
        held, self._record = begin(self.cache, ids, self.ledger.window)
        self.ledger.add(ids[:held])
        return held

    def add(self, step: TokenIds) -> None:
        """Note the ids of a step that the cache has been given."""
        self.ledger.add(step)
        if self._record is not None:
            self._record(step)

    def evict(self, ids: TokenIds, tokens: int) -> bool:
        """Evict a span of `tokens` tokens so that the rest is a prefix of `ids` or continues them.
        Returns False, with nothing changed, if there is no such span or keys cannot be shifted."""
        ledger = self.ledger
        start = common_length(ledger.ids, ids)
        rest, wanted = ledger.ids[start + tokens :], ids[start:]
        n = min(len(rest), len(wanted))
        if tokens <= 0 or n == 0 or not np.array_equal(rest[:n], wanted[:n]):
            return False
        # The template writes the same tokens before each turn: each turn keeps its own. So the span
        # is the first one after the kept tokens that gives the same result.
        while start > ledger.keep and ledger.ids[start - 1] == ledger.ids[start + tokens - 1]:
            start -= 1
        try:
            self.cache.evict(start, start + tokens)
        except CacheError:
            return False
        ledger.evict(start, start + tokens)
        return True

    def holds_more(self, ids: TokenIds, other: Window) -> bool:
        """Whether it begins with more of the ids than another, and can be rewound: a layer that is
        narrower than the window would lack what it saw before."""
        even = len({layer.size() for layer in windows(self.cache) if layer.total}) < 2
        return even and common_length(self.ledger.ids, ids) > common_length(other.ledger.ids, ids)

    def _held_of(self, ids: TokenIds, earlier: Iterable[Window]) -> int:
        """Rewind to the common prefix with `ids`, or to that of an earlier window."""
        ledger = self.ledger
        shared = min(common_length(ledger.ids, ids), len(ids) - 1)
        rest = ledger.ids[ledger.keep :]
        is_end = self.is_full and np.array_equal(rest, ids[-1 - len(rest) : -1])
        if is_end and shared >= ledger.keep:
            # A reply goes on, although its beginning, or what it answers, has left.
            return len(ids) - 1
        if surplus := len(ledger) - shared:
            try:
                self.cache.rewind(surplus)
                ledger.ids = ledger.ids[:shared]
            except CacheError:
                shared = 0
                for window in earlier:
                    n = len(window.ledger)
                    if 0 < n < len(ids) and common_length(window.ledger.ids, ids) == n:
                        self.cache, self.ledger = window.cache, window.ledger
                        return n
        if not shared and (surplus or not self.cache):
            # Rewound tokens still count towards positions. If the device fails, it is empty.
            self.drop()
            self.cache = self.model.make_cache(ledger.window, ledger.keep)
        return shared
