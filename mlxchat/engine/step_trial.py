"""Finds the fastest prefill step on the first steps of a long prompt, if the step size is "auto".

It tries 512, 1,024 and 2,048 tokens, and then the smaller ones again: a token takes longer the
later it stands, which this cancels out. `pace` runs the trial.
"""

from collections.abc import Callable
from statistics import mean

SIZES = (512, 1_024, 2_048)
DEFAULT = SIZES[0]

# A shorter prompt has too few tokens left to gain anything.
MIN_TOKENS = 8_192

# A larger step must save this much: it delays Ctrl-C and takes more memory.
WORTHWHILE = 0.03


class StepTrial:
    """`best` is the fastest size found, the default until a trial is complete.

    Sizes above `largest` are not tried, nor those for which `affords(size, tokens, seconds)` is
    false, given that the latest step had `tokens` and took `seconds`.
    """

    def __init__(self, largest: int, affords: Callable[[int, int, float], bool]) -> None:
        self._sizes = [size for size in SIZES if size <= largest]
        self._affords = affords
        self._is_complete = False
        self._planned: list[int] = []
        self._taken: list[tuple[int, float]] = []
        self.best = DEFAULT

    def begin(self, tokens: int) -> None:
        """Start with a prompt of `tokens`, if it is long enough and no earlier one sufficed."""
        self._taken.clear()
        useful = tokens >= MIN_TOKENS and len(self._sizes) > 1 and not self._is_complete
        # The first step warms up: a device prepares its kernels and memory in it.
        self._planned = [DEFAULT, *self._sizes, *self._sizes[-2::-1]] if useful else []

    def size(self) -> int:
        """Tokens in the next step."""
        if not self._planned:
            return self.best
        if self._taken:
            tokens, seconds = self._taken[-1]
            wanted = self._planned[0]
            if wanted > tokens and not self._affords(wanted, tokens, seconds):
                self._planned = [size for size in self._planned if size <= tokens]
        return self._planned[0]

    def took(self, tokens: int, seconds: float) -> None:
        """Report a step. A shorter one than planned ends the trial: steps take too long here."""
        if not self._planned:
            return
        if tokens != self._planned.pop(0):
            self._planned.clear()
            return
        self._taken.append((tokens, seconds))
        if not self._planned:
            self._is_complete = True
            self.best = self._fastest()

    def _fastest(self) -> int:
        measured = self._taken[1:]
        best, best_s = DEFAULT, float("inf")
        for size in sorted({tokens for tokens, _ in measured}):
            token_s = mean(seconds / size for tokens, seconds in measured if tokens == size)
            if token_s < best_s * (1 - WORTHWHILE):
                best, best_s = size, token_s
        return best
