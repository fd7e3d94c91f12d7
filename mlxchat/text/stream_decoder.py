"""Decode tokens incrementally, into complete characters only."""

from collections.abc import Callable, Sequence


class StreamDecoder:
    """Turns ids into text with `decode`; ids for which `is_silent` holds have none.

    A token's text can depend on the preceding tokens, so each is decoded together with them, and
    the text of those alone is removed. Source: the prefix method of Hugging Face's
    text-generation-inference.
    """

    # A UTF-8 character has at most four bytes and a token at least one, so an incomplete character
    # spans at most three tokens; anything before them is final.
    _UNFINISHED_TOKENS = 3
    _MAX_PENDING = 8

    def __init__(
        self, decode: Callable[[list[int]], str], is_silent: Callable[[int], bool]
    ) -> None:
        self._decode = decode
        self._is_silent = is_silent
        self._shown: list[int] = []
        self._pending: list[int] = []

    def add(self, id_: int) -> str:
        """Take one more token and return the text completed by it, often empty."""
        if self._is_silent(id_):
            # A character may continue after it, so it must not count as one of its tokens.
            return ""
        self._pending.append(id_)
        text = self._pending_text(len(self._pending))
        if not text.endswith("\ufffd"):
            return self._show(len(self._pending), text)
        final = self._final(text)
        return self._show(final, self._pending_text(final)) if final > 0 else ""

    def _final(self, text: str) -> int:
        """Number of pending tokens, with `text` their whole text, that can be shown without
        cutting a character: their own text must begin it."""
        limit = len(self._pending) - self._UNFINISHED_TOKENS
        for n in range(limit, 0, -1):
            if text.startswith(self._pending_text(n)):
                return n
        return limit if limit > self._MAX_PENDING else 0

    @property
    def state(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens kept as context, and those whose text is incomplete."""
        return tuple(self._shown), tuple(self._pending)

    def restore(self, shown: Sequence[int], pending: Sequence[int]) -> None:
        """Continue from a `state`."""
        self._shown, self._pending = list(shown), list(pending)

    def finish(self) -> str:
        """Text of the remaining tokens, with replacement characters if incomplete."""
        n = len(self._pending)
        return self._show(n, self._pending_text(n))

    def _pending_text(self, n: int) -> str:
        before = self._decode(self._shown)
        return self._decode(self._shown + self._pending[:n])[len(before) :]

    def _show(self, n: int, text: str) -> str:
        # Tokens without text wait for the next one, up to a limit.
        if text or n > self._MAX_PENDING:
            self._shown = self._pending[:n]
            self._pending = self._pending[n:]
        return text
