"""Drafts: what followed the latest tokens when they last appeared, and how many of that to try.

A draft that is right doubles the next one; a wrong one halves it, at most to its right part. At no
tokens, drafting pauses, until one predicted token would have been right. It also pauses, for longer
each time, while drafted tokens come slower than others: a row may cost nearly as much as a step.

Source: prompt lookup decoding (Saxena, 2023), and the hash chains of LZ77 compressors.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from mlxchat.models.model import Model
from mlxchat.settings import MAX_DRAFT, GenerationSettings
from mlxchat.text.encoder import TokenIds

# Tokens that must match, at least.
KEY = 3

# A match is not extended backwards beyond this many tokens.
MAX_MATCH = 32

# Earlier places that are compared, the latest first.
CANDIDATES = 8

# The number of tokens remembered, at about 200 bytes each.
CAPACITY = 1 << 18

NOWHERE = -1

# Tokens of the first draft, after short matches and after those of at least LONG tokens, which are
# right more often: their lengths are kept apart.
FIRST = (2, 4)
LONG = 6

# The weight of older times after each token, or draft.
FORGETTING = 0.9

# Drafts are too slow if they lose the time of more tokens than this: one may be delayed by chance.
TOLERATED = 2
# Tokens of a pause after such drafts; it doubles each time, up to the second.
SHORTEST_PAUSE, LONGEST_PAUSE = 32, 1024


class Match(NamedTuple):
    """`length` tokens (at most MAX_MATCH) that also appeared earlier, before place `next`."""

    length: int
    next: int


class History:
    """The latest tokens read and generated, indexed by each three in succession.

    Looking up a token takes constant time. At `CAPACITY` tokens, the older half is forgotten;
    places, which count from the oldest token, then change.
    """

    def __init__(self) -> None:
        self._clear()

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, ids: TokenIds) -> None:
        """Add tokens `(T,)`."""
        for id_ in ids[-CAPACITY:].tolist():
            self.add(id_)

    def add(self, id_: int) -> None:
        if len(self) == CAPACITY:
            kept = self._ids[CAPACITY // 2 :]
            self._clear()
            for each in kept:
                self.add(each)
        key = (*self._ids[1 - KEY :], id_)
        self._earlier.append(self._latest.get(key, NOWHERE))
        self._latest[key] = len(self)
        self._ids.append(id_)

    def match(self) -> Match | None:
        """The longest match of the latest tokens, and of several the latest."""
        best: Match | None = None
        place = end = len(self) - 1
        for _ in range(CANDIDATES):
            if place == NOWHERE:
                break
            place = self._earlier[place]
            length = self._common(place, end)
            if length >= KEY and (best is None or length > best.length):
                best = Match(length, place + 1)
                if length == MAX_MATCH:
                    break
        return best

    def following(self, place: int, count: int) -> list[int]:
        """Up to `count` tokens from `place` on, in order."""
        return self._ids[place : place + count]

    def _common(self, place: int, end: int) -> int:
        """How many tokens up to `place` equal those up to `end`."""
        most = min(MAX_MATCH, place + 1)
        for n in range(most):
            if self._ids[place - n] != self._ids[end - n]:
                return n
        return most

    def _clear(self) -> None:
        self._ids: list[int] = []
        # For each place, the one before with the same key; for each key, its latest place.
        self._earlier: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}


@dataclass(slots=True)
class Drafter:
    """Proposes the tokens that followed the latest ones when they last appeared.

    `drafted` and `accepted` count tokens.
    """

    history: History
    clock: Callable[[], float] = time.perf_counter
    drafted: int = 0
    accepted: int = 0
    # Of the latest tokens, and of those before the latest draft.
    _match: Match | None = None
    _drafted_after: Match | None = None
    _lengths: list[int] = field(default_factory=lambda: [*FIRST])
    _since_s: float | None = None
    # The time of a token that is not drafted, None before the first, and what drafts have saved.
    _plain_s: float | None = None
    _saved_s: float = 0.0
    _was_drafted: bool = False
    _next_pause: int = SHORTEST_PAUSE
    _paused: int = 0

    @property
    def counts(self) -> tuple[int, int]:
        return self.drafted, self.accepted

    @property
    def is_promising(self) -> bool:
        """Whether a draft is likely to follow the next token."""
        return self._paused == 0 and self._length > 0 and self._plain_s is not None

    @property
    def _length(self) -> int:
        return 0 if self._match is None else self._lengths[self._match.length >= LONG]

    def begin(self) -> None:
        """Generation begins or continues now."""
        self._since_s = None

    def add(self, id_: int, *, was_drafted: bool = False) -> None:
        """Add a generated token. If none was drafted, it shows if a draft would have been right."""
        self._time(was_drafted=was_drafted)
        if self._match is not None and not was_drafted:
            predicted = self.history.following(self._match.next, 1)
            self._adapt(self._match, 0, is_right=predicted == [id_])
        self._paused -= self._paused > 0
        self.history.add(id_)
        self._match = self.history.match()

    def propose(self, room: int) -> list[int]:
        """At most `room` tokens expected to follow; none while drafting pauses."""
        if self._saved_s < -TOLERATED * (self._plain_s or 0.0):
            self._paused, self._saved_s = self._next_pause, 0.0
            self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)
        elif self._saved_s > 0:
            self._next_pause = SHORTEST_PAUSE
        if self._match is None or not self.is_promising:
            return []
        self._saved_s *= FORGETTING
        self._drafted_after = self._match
        return self.history.following(self._match.next, min(room, MAX_DRAFT, self._length))

    def learn(self, drafted: int, right: int) -> None:
        """The first `right` of the `drafted` tokens proposed last were right."""
        self.drafted += drafted
        self.accepted += right
        assert self._drafted_after is not None
        self._adapt(self._drafted_after, right, is_right=right == drafted)

    def _adapt(self, match: Match, right: int, *, is_right: bool) -> None:
        length = self._lengths[match.length >= LONG]
        longer, shorter = min(max(1, 2 * length), MAX_DRAFT), max(right, length // 2)
        self._lengths[match.length >= LONG] = longer if is_right else shorter

    def _time(self, *, was_drafted: bool) -> None:
        now_s = self.clock()
        if self._since_s is not None:
            took_s = now_s - self._since_s
            plain_s = took_s if self._plain_s is None else self._plain_s
            # After a draft, the next token waits for what has to be computed again.
            if was_drafted or self._was_drafted:
                self._saved_s += plain_s - took_s
            else:
                self._plain_s = FORGETTING * plain_s + (1 - FORGETTING) * took_s
        self._since_s, self._was_drafted = now_s, was_drafted


def make_drafter(model: Model, generation: GenerationSettings) -> Drafter | None:
    """None if lookup is off or the model is shared by several machines."""
    if generation.lookup is False or model.ranks.size > 1:
        return None
    return Drafter(History())
