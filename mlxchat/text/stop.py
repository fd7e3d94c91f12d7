"""Stop texts: found across token boundaries, never shown."""

from collections.abc import Sequence


class StopTexts:
    """Holds back text that may be the beginning of a stop text until that is decided."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        """Take more text and return what may be shown now. Sets `found` at a stop text."""
        if not self._texts:
            return text
        self._held += text
        starts = [self._held.find(stop) for stop in self._texts]
        if any(start >= 0 for start in starts):
            self.found = True
            shown = self._held[: min(start for start in starts if start >= 0)]
            self._held = ""
            return shown
        return self._release(len(self._held) - length_begun(self._held, self._texts))

    @property
    def held(self) -> str:
        """The text currently held back."""
        return self._held

    def restore(self, held: str) -> None:
        """Continue with text held back earlier."""
        self._held = held

    def finish(self) -> str:
        """Return the text held back: no stop text follows."""
        return self._release(len(self._held))

    def _release(self, n: int) -> str:
        shown, self._held = self._held[:n], self._held[n:]
        return shown


def length_begun(text: str, searched: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that begins one of the texts searched for."""
    longest = min(max(map(len, searched)) - 1, len(text))
    ends = (text[-n:] for n in range(longest, 0, -1))
    return next((len(end) for end in ends if any(each.startswith(end) for each in searched)), 0)
