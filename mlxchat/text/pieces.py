"""Text that arrives in pieces: decoded from tokens, cut off at stop texts, stripped, and as one
text with thoughts in it for pipes."""

from collections.abc import Callable, Iterable, Sequence

# Whether it is a thought, and its text.
Piece = tuple[bool, str]

# The tags for thoughts in plain-text output, whatever the model's own markers.
THINK_TAGS = ("<think>", "</think>")


class StreamDecoder:
    """Turns ids into text with `decode`, into complete characters only; ids for which `is_silent`
    holds have none.

    A token's text can depend on the preceding tokens, so each is decoded together with them, and
    the text of those alone is removed. Source: the prefix method of Hugging Face's
    text-generation-inference; the library's own has no state to save.
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
        text = self._text(len(self._pending))
        if not text.endswith("\ufffd"):
            return self._show(len(self._pending), text)
        # The first tokens can be shown if their own text begins it, so no character is cut.
        limit = len(self._pending) - self._UNFINISHED_TOKENS
        for n in range(limit, 0, -1):
            begun = self._text(n)
            if text.startswith(begun):
                return self._show(n, begun)
        return self._show(limit, self._text(limit)) if limit > self._MAX_PENDING else ""

    @property
    def state(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens kept as context, and those whose text is incomplete."""
        return tuple(self._shown), tuple(self._pending)

    def restore(self, shown: Sequence[int], pending: Sequence[int]) -> None:
        """Continue from a `state`."""
        self._shown, self._pending = list(shown), list(pending)

    def finish(self) -> str:
        """Text of the remaining tokens, with replacement characters if incomplete."""
        return self._show(len(self._pending), self._text(len(self._pending)))

    def _text(self, n: int) -> str:
        """The text of the first `n` pending tokens."""
        before = self._decode(self._shown)
        return self._decode(self._shown + self._pending[:n])[len(before) :]

    def _show(self, n: int, text: str) -> str:
        # Tokens without text wait for the next one, up to a limit.
        if text or n > self._MAX_PENDING:
            self._shown, self._pending = self._pending[:n], self._pending[n:]
        return text


class StopTexts:
    """Holds back text that may be the beginning of a stop text until that is decided. Stop texts
    are found across token boundaries, and never shown."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self.held = ""
        self.found = False

    def add(self, text: str) -> str:
        """Take more text and return what may be shown now. Sets `found` at a stop text."""
        self.held += text
        starts = [start for stop in self._texts if (start := self.held.find(stop)) >= 0]
        if starts:
            self.found = True
            shown, self.held = self.held[: min(starts)], ""
            return shown
        return self._release(len(self.held) - length_begun(self.held, self._texts))

    def finish(self) -> str:
        """Return the text held back: no stop text follows."""
        return self._release(len(self.held))

    def _release(self, n: int) -> str:
        shown, self.held = self.held[:n], self.held[n:]
        return shown


def length_begun(text: str, searched: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that begins one of the texts searched for."""
    longest = min(max(map(len, searched), default=1) - 1, len(text))
    ends = (text[-n:] for n in range(longest, 0, -1))
    return next((len(end) for end in ends if any(each.startswith(end) for each in searched)), 0)


class OuterWhitespace:
    """Strips a text that arrives in pieces: `add` returns what can be shown so far."""

    def __init__(self) -> None:
        self._begun = False
        self._held = ""

    def add(self, text: str) -> str:
        text = self._held + text if self._begun else text.lstrip()
        shown = text.rstrip()
        self._held = text[len(shown) :]
        self._begun = self._begun or bool(shown)
        return shown


def joined(pieces: Iterable[Piece]) -> tuple[str, str]:
    """Join the pieces into the thought and the answer."""
    pieces = list(pieces)
    thought, answer = (
        "".join(text for is_, text in pieces if is_ is kind) for kind in (True, False)
    )
    return thought, answer


class ThoughtsAsText:
    """Writes the pieces of a reply as one text: thoughts in THINK_TAGS, or omitted if `hidden`.

    `inside` continues a text that stopped within a thought.
    """

    def __init__(self, *, hidden: bool, inside: bool = False) -> None:
        self._hidden = hidden
        self.inside = inside

    def add(self, text: str, thought: bool) -> str:
        """The text to write for a piece."""
        if not text or (thought and self._hidden):
            return ""
        tags = ""
        if thought != self.inside:
            tags = THINK_TAGS[0] if thought else f"{THINK_TAGS[1]}\n\n"
        self.inside = thought
        return tags + text
