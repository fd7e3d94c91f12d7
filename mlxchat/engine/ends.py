"""What ends a generation: small objects that see every token and return the reason to end, or None.

`EndOfTurn`, `StopText`, `Complete` and `MaxTokens` end a text, with or before the token that they
see. All others stop it between two tokens, so that it can be continued: the token after the one
that they see is being computed already, and is the last.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from mlxchat.engine.constrained import Constrained
from mlxchat.engine.sampling import Token
from mlxchat.text.pieces import StopTexts
from mlxchat.text.reply_reader import Reader

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
class EndOfTurn:
    """A token that ends the reply where it stands, and is not part of it."""

    eos_ids: Collection[int]
    reader: Reader

    def see(self, token: Token | None) -> str | None:
        assert token is not None
        assert token.id is not None
        return "stop" if token.id in self.eos_ids or self.reader.ends(token.id) else None


@dataclass(frozen=True, slots=True)
class StopText:
    """The text has one of the stop texts."""

    texts: StopTexts

    def see(self, token: Token | None) -> str | None:
        return "stop_text" if self.texts.found else None


@dataclass(frozen=True, slots=True)
class Complete:
    """The constraint lets nothing follow."""

    constrained: Constrained

    def see(self, token: Token | None) -> str | None:
        return "stop" if self.constrained.is_complete else None


@dataclass(slots=True)
class MaxTokens:
    """The text has as many tokens as it may; -1 means no limit."""

    limit: int
    generated: int = 0

    def see(self, token: Token | None) -> str | None:
        self.generated += token is not None
        return "length" if self.generated == self.limit else None


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
        self._ngrams: deque[tuple[int, ...]] = deque()
        self._known: Counter[tuple[int, ...]] = Counter()
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
        self._observe(id_)
        self.looping = self.share >= (LEAVE_SHARE if self.looping else ENTER_SHARE)

    def state(self) -> dict[str, Any]:
        """The complete state, ready for JSON: at most `HISTORY` ids, and `looping`."""
        return {"ids": list(self._ids), "looping": self.looping}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "LoopDetector":
        """Restore a detector from its `state`: it continues exactly as the original."""
        detector = cls()
        for id_ in state["ids"]:
            detector._observe(id_)
        detector.looping = state["looping"]
        return detector

    def _observe(self, id_: int) -> None:
        self._ids.append(id_)
        self._ngram = (*self._ngram, id_)[-NGRAM:]
        repeats = self._ngram in self._known
        self._repeated += repeats - self._repeats.popleft()
        self._repeats.append(repeats)
        self._remember_ngram()

    def _remember_ngram(self) -> None:
        if len(self._ngram) < NGRAM:
            return
        self._ngrams.append(self._ngram)
        self._known[self._ngram] += 1
        if len(self._ngrams) > LOOK_BACK:
            oldest = self._ngrams.popleft()
            self._known[oldest] -= 1
            if not self._known[oldest]:
                del self._known[oldest]
