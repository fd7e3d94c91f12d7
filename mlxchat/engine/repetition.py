"""Detect that a generation repeats itself.

Depends on the token sequence alone, never on time, so a resumed run decides like an uninterrupted
one. What to do about it is left to others.
"""

from collections import Counter, deque
from typing import Any

NGRAM = 8
LOOK_BACK = 2048
WINDOW = 512

# The ids that the share depends on: the window, and what its oldest token could repeat.
HISTORY = WINDOW + LOOK_BACK + NGRAM - 1

ENTER_SHARE = 0.8
LEAVE_SHARE = 0.5


class LoopDetector:
    """Measures how much of the latest `WINDOW` tokens is repetition.

    A token is a repetition if the `NGRAM` tokens ending in it also occur at one of the `LOOK_BACK`
    positions before it. This detects loops with periods up to `LOOK_BACK`, and long passages that
    are repeated. Holds at most the latest `HISTORY` ids.
    """

    def __init__(self) -> None:
        self._ids: deque[int] = deque(maxlen=HISTORY)
        self._ngram: tuple[int, ...] = ()
        self._ngrams: deque[tuple[int, ...]] = deque()
        self._known: Counter[tuple[int, ...]] = Counter()
        self._repeats: deque[bool] = deque([False] * WINDOW)
        self._repeated = 0
        self._looping = False

    @property
    def share(self) -> float:
        """Share of the latest `WINDOW` tokens that is repetition, 0 to 1.

        Before `WINDOW` tokens, the missing ones count as new, so a short text is never a loop.
        """
        return self._repeated / WINDOW

    @property
    def looping(self) -> bool:
        """Whether this is a loop: from a share of `ENTER_SHARE` until one below `LEAVE_SHARE`."""
        return self._looping

    def add(self, id_: int) -> None:
        """Add the next token of the sequence."""
        self._observe(id_)
        self._looping = self.share >= (LEAVE_SHARE if self._looping else ENTER_SHARE)

    def state(self) -> dict[str, Any]:
        """The complete state, ready for JSON: at most `HISTORY` ids, and `looping`."""
        return {"ids": list(self._ids), "looping": self._looping}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "LoopDetector":
        """Restore a detector from its `state`: it continues exactly as the original."""
        detector = cls()
        for id_ in state["ids"]:
            detector._observe(id_)
        detector._looping = state["looping"]
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
