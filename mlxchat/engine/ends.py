"""What stops a reply before its own end: small objects that see every token and return the reason,
or None.

They stop it between two tokens, so that it can be continued: the token after the one that they see
is being computed already, and is the last. What ends a reply is in `Reply.add`.
"""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from mlxchat.engine.sampling import Token

# The reasons of ends after which a run can be resumed.
RESUMABLE = ("interrupted", "time", "loop")


class End(Protocol):
    def see(self, token: Token | None) -> str | None:
        """The reason to end at this token, whose text is not known yet; None if there is none.
        Between two prefill steps there is no token."""
        ...


def first_reason(ends: Iterable[End], token: Token | None) -> str | None:
    """The first of the reasons to end; all see the token."""
    reason: str | None = None
    for end in ends:
        found = end.see(token)
        reason = reason or found
    return reason


@dataclass(frozen=True, slots=True)
class Asked:
    """The caller wants to stop, for example after Ctrl-C."""

    should_stop: Callable[[], bool]
    reason: str = "interrupted"

    def see(self, token: Token | None) -> str | None:
        return self.reason if self.should_stop() else None


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time in seconds since the epoch: of the wall clock, because a machine may sleep."""

    at_s: float = math.inf

    def see(self, token: Token | None) -> str | None:
        return "time" if time.time() >= self.at_s else None


NGRAM = 8
LOOK_BACK = 2048
WINDOW = 512

# The ids that the share depends on: the window, and what its oldest token could repeat.
HISTORY = WINDOW + LOOK_BACK + NGRAM - 1

ENTER_SHARE = 0.8
LEAVE_SHARE = 0.5


class LoopDetector:
    """The text repeats itself: measures how much of the latest `WINDOW` tokens is repetition.

    A token is a repetition if the `NGRAM` tokens ending in it also occur at one of the `LOOK_BACK`
    positions before it. This detects loops with periods up to `LOOK_BACK`, and long passages that
    are repeated. Depends on the tokens alone, never on time, so a resumed run decides like an
    uninterrupted one. Holds at most the latest `HISTORY` ids.
    """

    def __init__(self) -> None:
        # Whether this is a loop: from a share of `ENTER_SHARE` until one below `LEAVE_SHARE`.
        self.looping = False
        self._ids: deque[int] = deque(maxlen=HISTORY)
        self._ngram: tuple[int, ...] = ()
        # The latest place of each of the latest n-grams, the oldest first.
        self._places: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._place = 0
        self._repeats: deque[bool] = deque([False] * WINDOW)
        self._repeated = 0

    @property
    def share(self) -> float:
        """Share of the latest `WINDOW` tokens that is repetition, 0 to 1.

        Before `WINDOW` tokens, the missing ones count as new, so a short text is never a loop.
        """
        return self._repeated / WINDOW

    def see(self, token: Token | None) -> str | None:
        if token is not None and token.id is not None:
            self.add(token.id)
        return "loop" if self.looping else None

    def add(self, id_: int) -> None:
        """Add the next token of the sequence."""
        self._ids.append(id_)
        self._place += 1
        self._ngram = (*self._ngram, id_)[-NGRAM:]
        before = self._places.pop(self._ngram, -LOOK_BACK)
        repeats = self._place - before <= LOOK_BACK
        if len(self._ngram) == NGRAM:
            self._places[self._ngram] = self._place
        if len(self._places) > LOOK_BACK:
            self._places.popitem(last=False)
        self._repeated += repeats - self._repeats.popleft()
        self._repeats.append(repeats)
        self.looping = self.share >= (LEAVE_SHARE if self.looping else ENTER_SHARE)

    def state(self) -> dict[str, Any]:
        """The complete state, ready for JSON: at most `HISTORY` ids, and `looping`."""
        return {"ids": list(self._ids), "looping": self.looping}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "LoopDetector":
        """Restore a detector from its `state`: it continues exactly as the original."""
        detector = cls()
        for id_ in state["ids"]:
            detector.add(id_)
        detector.looping = state["looping"]
        return detector
