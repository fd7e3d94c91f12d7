"""Whether a generation has begun to repeat itself, and what to do about it.

Token ids in, decisions out: functions of the sequence of tokens alone, never of time, so that a
resumed run decides as one that was never interrupted. Telling the user is left to others.
"""

from collections import Counter, deque
from typing import Any

NGRAM = 8
LOOK_BACK = 2048
WINDOW = 512

# All that the share depends on: what the oldest token of the window could be a repetition of.
HISTORY = WINDOW + LOOK_BACK + NGRAM - 1

ENTER_SHARE = 0.8
LEAVE_SHARE = 0.5

NUDGED_TOKENS = 200


class LoopDetector:
    """Measures how much of the latest `WINDOW` tokens is repetition.

    A token is repetition where the last `NGRAM` tokens, itself included, have stood in the same
    order at one of the `LOOK_BACK` positions before it. So loops of any period up to `LOOK_BACK`
    show, and so do long passages told again. Holds the latest `HISTORY` ids at most.
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

        What has not been generated yet counts as new, so that a short text is no loop.
        """
        return self._repeated / WINDOW

    @property
    def looping(self) -> bool:
        """Whether it is a loop: from a share of `ENTER_SHARE` on, until below `LEAVE_SHARE`."""
        return self._looping

    def add(self, id_: int) -> None:
        """Take the next token of the sequence."""
        self._observe(id_)
        self._looping = self.share >= (LEAVE_SHARE if self._looping else ENTER_SHARE)

    def state(self) -> dict[str, Any]:
        """All that later answers depend on, fit for JSON: `HISTORY` ids at most, and `looping`."""
        return {"ids": list(self._ids), "looping": self._looping}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "LoopDetector":
        """The detector that said `state`: it answers the same, now and after any more tokens."""
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


class Nudge:
    """Which temperature helps a generation out of a loop: a higher one, for a stretch at a time.

    A stretch lasts `NUDGED_TOKENS` at most and ends as soon as there is no loop any more. If there
    still is one when all of the detector's window has come after the stretch began, the next
    stretch begins.
    """

    def __init__(self, base_temp: float) -> None:
        self._base_temp = base_temp
        self._since: int | None = None

    def temp(self, looping: bool, tokens: int) -> float:
        """The temperature of the next token, of which `tokens` have been generated before it.

        Call it once for every token, in order.
        """
        if not looping:
            self._since = None
        elif self._since is None or tokens - self._since >= WINDOW:
            self._since = tokens
        nudging = self._since is not None and tokens - self._since < NUDGED_TOKENS
        return raised(self._base_temp) if nudging else self._base_temp

    def state(self) -> dict[str, Any]:
        """All that later answers depend on, fit for JSON; the base temperature is not in it."""
        return {"since": self._since}

    @classmethod
    def from_state(cls, base_temp: float, state: dict[str, Any]) -> "Nudge":
        """The nudge that said `state`."""
        nudge = cls(base_temp)
        nudge._since = state["since"]
        return nudge


def raised(base_temp: float) -> float:
    """The temperature of a stretch: the model's own distribution at least, flatter for the flat."""
    # A greedy loop is nearly certain of each token: at 0.8 a stretch often ends in the same loop.
    return max(1.0, base_temp + 0.5)
