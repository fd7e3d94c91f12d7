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
        return self._release(len(self._held) - self._possible_beginning())

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

    def _possible_beginning(self) -> int:
        """Length of the longest suffix of the held text that begins a stop text."""
        longest = min(max(map(len, self._texts)) - 1, len(self._held))
        return next(
            (n for n in range(longest, 0, -1) if self._begins_a_stop_text(self._held[-n:])), 0
        )

    def _begins_a_stop_text(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._texts)
