"""The contents of the window: the cache, its ledger, and the turns they were filled for.

`view` decides which turns belong in the cache; this file evicts the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from mlxchat.cache import Cache
from mlxchat.chat.ledger import Ledger
from mlxchat.chat.turn import Turn
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
class Held:
    """The ledger's ids always match the tokens in the cache. A cache without layers is empty and
    has to be rebuilt."""

    cache: Cache
    ledger: Ledger
    turns: list[Turn] = field(default_factory=list[Turn])

    @classmethod
    def nothing(cls, window: int | None, keep: int) -> Held:
        return cls(Cache(), Ledger(window, keep))

    def fork(self) -> Held:
        """A copy-on-write copy."""
        return Held(self.cache.fork(), self.ledger.copy(), list(self.turns))

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

    def begin_with(
        self, prefixes: KnownPrefixes, model: Model, ids: TokenIds
    ) -> tuple[int, OnHeld]:
        """Fill the empty cache with the known prefix of `ids`; return its length, and a function to
        call with the ids of each step prefilled after it."""
        cached, record = prefixes.begin(model, self.cache, ids, self.ledger.window)
        self.ledger.add(ids[:cached])

        def on_held(step: TokenIds) -> None:
            self.ledger.add(step)
            if record is not None:
                record(step)

        return cached, on_held

    def rewind_to(self, ids: TokenIds) -> int:
        """Rewind to the common prefix with `ids`; return its length, at most `len(ids) - 1`.
        Raises CacheError, with nothing changed, if a layer cannot be rewound."""
        shared = min(self.ledger.common_prefix(ids), len(ids) - 1)
        surplus = len(self.ledger) - shared
        if surplus:
            self.cache.rewind(surplus)
            self.ledger.rewind(surplus)
        return shared


@dataclass(frozen=True, slots=True)
class Before:
    """Everything that a turn or a change of the note changes, as it was before. `last` is a copy of
    the last turn at that time, because continuing a reply changes it. `is_of_note` is whether it
    was the note that changed."""

    turns: int
    last: Turn | None
    forgotten: tuple[bool, ...]
    held: Held
    note: str | None
    is_of_note: bool

    @classmethod
    def of(
        cls, turns: Sequence[Turn], held: Held, note: str | None, *, is_of_note: bool = False
    ) -> Before:
        last = replace(turns[-1]) if turns else None
        forgotten = tuple(turn.forgotten for turn in turns)
        return cls(len(turns), last, forgotten, held.fork(), note, is_of_note)

    def restore(self, turns: Sequence[Turn]) -> None:
        """Restore which turns were forgotten, and the last reply if no turn was added."""
        for turn, forgotten in zip(turns, self.forgotten, strict=False):
            turn.forgotten = forgotten
        if self.last is not None and len(turns) == self.turns:
            turns[-1].become(self.last)
