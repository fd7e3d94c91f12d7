"""The model's window: the cache, and the ids in it. `view` decides what it should hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mlxchat.cache import Cache
from mlxchat.cache.layers import windows
from mlxchat.chat.ledger import Ledger
from mlxchat.engine.prefill import OnHeld
from mlxchat.errors import CacheError
from mlxchat.models.model import Model
from mlxchat.text.spans import TokenIds


class KnownPrefixes(Protocol):
    """Remembers prompt prefixes across conversations."""

    def begin(
        self, model: Model, cache: Cache, ids: TokenIds, window: int | None
    ) -> tuple[int, OnHeld | None]:
        """Fill the empty cache with the known prefix of `ids`; return the prefix's length, and a
        function to call with the ids of each step prefilled after it."""
        ...


@dataclass(slots=True)
class Window:
    """The ledger's ids always match the tokens in the cache. A cache without layers is empty and
    has to be made. `turns` are the numbers of the turns that it is for."""

    model: Model
    ledger: Ledger
    cache: Cache = field(default_factory=Cache)
    turns: tuple[int, ...] = ()
    # Gets the ids of each step prefilled after a known prefix.
    _record: OnHeld | None = None

    @classmethod
    def make(cls, model: Model, size: int | None, keep: int, turns: tuple[int, ...] = ()) -> Window:
        return cls(model, Ledger(size, keep), model.make_cache(size, keep), turns)

    def fork(self) -> Window:
        """A copy-on-write copy."""
        return Window(self.model, self.ledger.copy(), self.cache.fork(), self.turns)

    def drop(self) -> None:
        """Drop the cache, whose contents cannot be trusted."""
        self.ledger, self.cache = Ledger(self.ledger.window, self.ledger.keep), Cache()

    def become(self, ids: TokenIds, earlier: Iterable[Window] = ()) -> int:
        """Hold the longest prefix of `ids: (T,)` that needs no computing, and at most T - 1; return
        its length. If a layer cannot be rewound, this is one of the `earlier` windows, or empty."""
        self._record = None
        if not self.cache:
            self._make()
        try:
            return self._rewind_to(ids)
        except CacheError:
            pass
        for window in earlier:
            n = len(window.ledger)
            if 0 < n < len(ids) and window.ledger.common_prefix(ids) == n:
                self.cache, self.ledger = window.cache, window.ledger
                return n
        self._make()
        return 0

    def fill(self, ids: TokenIds, prefixes: KnownPrefixes) -> int:
        """Fill the empty window with the known prefix of `ids`; return its length."""
        if any(part.total for part in windows(self.cache)):
            # Rewound tokens still count towards positions.
            self._make()
        cached, self._record = prefixes.begin(self.model, self.cache, ids, self.ledger.window)
        self.ledger.add(ids[:cached])
        return cached

    def add(self, step: TokenIds) -> None:
        """Note the ids of a step that the cache has been given."""
        self.ledger.add(step)
        if self._record is not None:
            self._record(step)

    def evict(self, ids: TokenIds, tokens: int) -> bool:
        """Evict a span of `tokens` tokens so that the rest is a prefix of `ids` or continues them.
        Returns False, with nothing changed, if there is no such span or keys cannot be shifted."""
        ledger = self.ledger
        start = ledger.common_prefix(ids)
        rest, wanted = ledger.ids[start + tokens :], ids[start:]
        n = min(len(rest), len(wanted))
        if tokens <= 0 or n == 0 or not np.array_equal(rest[:n], wanted[:n]):
            return False
        # The template writes the same tokens before each turn: each turn keeps its own.
        start = ledger.earliest_span(start, tokens)
        try:
            self.cache.evict(start, start + tokens)
        except CacheError:
            return False
        ledger.evict(start, start + tokens)
        return True

    def _make(self) -> None:
        # If the device fails meanwhile, the window is empty.
        self.drop()
        self.cache = self.model.make_cache(self.ledger.window, self.ledger.keep)

    def _rewind_to(self, ids: TokenIds) -> int:
        """Rewind to the common prefix with `ids`. Raises CacheError, with nothing changed, if a
        layer cannot be rewound."""
        shared = min(self.ledger.common_prefix(ids), len(ids) - 1)
        surplus = len(self.ledger) - shared
        if surplus:
            self.cache.rewind(surplus)
            self.ledger.rewind(surplus)
        return shared
