"""What the window holds: the cache, the ledger that mirrors it, and the turns they were filled for.

What should be in it is `conversation`'s business; here it is compared, and what differs leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mlxchat.cache import Cache
from mlxchat.chat.ledger import Ledger
from mlxchat.chat.turn import Turn
from mlxchat.errors import CacheError
from mlxchat.text.spans import TokenIds


@dataclass(slots=True)
class Held:
    """The ledger's ids are always those of the tokens in the cache. A cache without layers holds
    nothing and has to be made anew."""

    cache: Cache
    ledger: Ledger
    turns: list[Turn] = field(default_factory=list[Turn])

    @classmethod
    def nothing(cls, window: int | None, keep: int) -> Held:
        return cls(Cache(), Ledger(window, keep))

    def fork(self) -> Held:
        """The same once more; nothing is copied until one of the two is written."""
        return Held(self.cache.fork(), self.ledger.copy(), list(self.turns))

    def evict(self, ids: TokenIds, tokens: int) -> bool:
        """Evict a span of that many tokens so that what stays is a beginning of `ids`, or what
        continues them. False, with nothing done, if no span fits or keys cannot be shifted."""
        ledger = self.ledger
        start = ledger.common_prefix(ids)
        rest, wanted = ledger.ids[start + tokens :], ids[start:]
        n = min(len(rest), len(wanted))
        if tokens <= 0 or n == 0 or not np.array_equal(rest[:n], wanted[:n]):
            return False
        # What the template writes before each turn is the same: each turn keeps its own.
        start = ledger.earliest_span(start, tokens)
        try:
            self.cache.evict(start, start + tokens)
        except CacheError:
            return False
        ledger.evict(start, start + tokens)
        return True

    def rewind_to(self, ids: TokenIds) -> int:
        """Rewind to what is shared with `ids`; return how many tokens that is, at most one short of
        all of them. Raises CacheError, with nothing done, if a layer cannot be rewound."""
        shared = min(self.ledger.common_prefix(ids), len(ids) - 1)
        surplus = len(self.ledger) - shared
        if surplus:
            self.cache.rewind(surplus)
            self.ledger.rewind(surplus)
        return shared


@dataclass(frozen=True, slots=True)
class Before:
    """All that a turn changes, from before it. `last` is a copy of the last turn as it was then:
    a continued reply changes it."""

    turns: int
    last: Turn | None
    forgotten: tuple[bool, ...]
    held: Held

    @classmethod
    def of(cls, turns: Sequence[Turn], held: Held) -> Before:
        last = replace(turns[-1]) if turns else None
        return cls(len(turns), last, tuple(turn.forgotten for turn in turns), held.fork())

    def remember(self, turns: Sequence[Turn]) -> None:
        """Let each turn be forgotten, or not, as it was then."""
        for turn, forgotten in zip(turns, self.forgotten, strict=False):
            turn.forgotten = forgotten
