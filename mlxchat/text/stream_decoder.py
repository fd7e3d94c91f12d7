"""Text of tokens as they come, in complete characters only."""

from collections.abc import Callable, Sequence


class StreamDecoder:
    """`decode` makes text of ids, in which those that are `is_silent` have none.

    The text of a token can depend on the ones before it, so each is decoded after its
    predecessors and what those alone give is taken off. Source: the prefix method of Hugging
    Face's text-generation-inference.
    """

    # A UTF-8 character has four bytes at most and a token one at least: of an unfinished character
    # there can be three tokens, and whatever came before them is final.
    _UNFINISHED_TOKENS = 3
    _MOST_PENDING = 8

    def __init__(
        self, decode: Callable[[list[int]], str], is_silent: Callable[[int], bool]
    ) -> None:
        self._decode = decode
        self._is_silent = is_silent
        self._shown: list[int] = []
        self._pending: list[int] = []

    def add(self, id_: int) -> str:
        """Take one more token and return the text that is complete now, often empty."""
        if self._is_silent(id_):
            # A character continues after it, and it must not count as one of its tokens.
            return ""
        self._pending.append(id_)
        text = self._pending_text(len(self._pending))
        if not text.endswith("\ufffd"):
            return self._show(len(self._pending), text)
        final = self._final(text)
        return self._show(final, self._pending_text(final)) if final > 0 else ""

    def _final(self, text: str) -> int:
        """How many pending tokens, whose whole text is `text`, can be shown without a cut through
        a character: their own text must begin it."""
        most = len(self._pending) - self._UNFINISHED_TOKENS
        for n in range(most, 0, -1):
            if text.startswith(self._pending_text(n)):
                return n
        return most if most > self._MOST_PENDING else 0

    @property
    def state(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens that it looks back at, and those whose text is not complete."""
        return tuple(self._shown), tuple(self._pending)

    def restore(self, shown: Sequence[int], pending: Sequence[int]) -> None:
        """Go on from a `state`."""
        self._shown, self._pending = list(shown), list(pending)

    def finish(self) -> str:
        """Text of whatever is still incomplete, replacement characters and all."""
        n = len(self._pending)
        return self._show(n, self._pending_text(n))

    def _pending_text(self, n: int) -> str:
        before = self._decode(self._shown)
        return self._decode(self._shown + self._pending[:n])[len(before) :]

    def _show(self, n: int, text: str) -> str:
        # Tokens without text wait for the next one, but not for ever.
        if text or n > self._MOST_PENDING:
            self._shown = self._pending[:n]
            self._pending = self._pending[n:]
        return text
