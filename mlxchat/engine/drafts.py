"""Decides how many tokens to draft, by how the last drafts went.

A draft that is right doubles the next one; a wrong one halves it, at most to its right part. At no
tokens, drafting pauses, until one predicted token would have been right. It also pauses, for longer
each time, while drafted tokens come slower than others: on some machines, a row costs nearly as
much as a step.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mlxchat.engine.lookup import History, Match
from mlxchat.models.model import Model
from mlxchat.settings import MAX_DRAFT, GenerationSettings

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


@dataclass(slots=True)
class Drafter:
    """Proposes the tokens that followed the latest ones when they last appeared.

    `limit` is the length of the longest draft in tokens. `drafted` and `accepted` count tokens.
    """

    history: History
    limit: int
    clock: Callable[[], float] = time.perf_counter
    drafted: int = 0
    accepted: int = 0
    match: Match | None = None
    _predicted: int | None = None
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
        return 0 if self.match is None else self._lengths[self.match.length >= LONG]

    def begin(self) -> None:
        """Generation begins or continues now."""
        self._since_s = None

    def add(self, id_: int, *, was_drafted: bool = False) -> None:
        """Add a generated token. If none was drafted, it shows if a draft would have been right."""
        self._time(was_drafted=was_drafted)
        if self.match is not None and not was_drafted:
            self._adapt(0, is_right=id_ == self._predicted)
        self._paused -= self._paused > 0
        self.history.add(id_)
        self.match = match = self.history.match()
        self._predicted = None if match is None else self.history.following(match.next, 1)[0]

    def propose(self, room: int) -> list[int]:
        """At most `room` tokens expected to follow; none while drafting pauses."""
        if self._saved_s < -TOLERATED * (self._plain_s or 0.0):
            self._paused, self._saved_s = self._next_pause, 0.0
            self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)
        elif self._saved_s > 0:
            self._next_pause = SHORTEST_PAUSE
        if self.match is None or not self.is_promising:
            return []
        self._saved_s *= FORGETTING
        return self.history.following(self.match.next, min(room, self.limit, self._length))

    def learn(self, drafted: int, right: int) -> None:
        """The first `right` of the `drafted` tokens proposed last were right."""
        self.drafted += drafted
        self.accepted += right
        self._adapt(right, is_right=right == drafted)

    def _adapt(self, right: int, *, is_right: bool) -> None:
        assert self.match is not None
        longer, shorter = min(max(1, 2 * self._length), self.limit), max(right, self._length // 2)
        self._lengths[self.match.length >= LONG] = longer if is_right else shorter

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
    if generation.lookup is False or model.peers is not None:
        return None
    return Drafter(History(), generation.num_draft_tokens or MAX_DRAFT)
