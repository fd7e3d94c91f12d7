"""Thoughts as text: found by plain-text tags, and written with tags for pipes.

`reply_reader` handles tags that are tokens.
"""

from collections.abc import Iterable
from enum import Enum, auto

Piece = tuple[bool, str]

# The tags for thoughts in plain-text output, whatever the model's own markers.
THINK_TAGS = ("<think>", "</think>")


class _Place(Enum):
    START = auto()
    THINKING = auto()
    AFTER_CLOSE_TAG = auto()
    ANSWER = auto()


class ThinkSplitter:
    """Splits text into pieces of `(is_thinking, text)`, without the tags.

    Only a block at the very beginning, or `after_blanks`, is a thought: later tags are text. A
    closing tag there ends an omitted thought. `inside` means that the prompt has opened the block.
    Newlines after the closing tag are dropped, unless it `keeps_newlines`.
    """

    def __init__(
        self, open_tag: str, close_tag: str, inside: bool = False, *, after_blanks: bool = True
    ) -> None:
        assert open_tag
        assert close_tag
        self._open_tag, self._close_tag = open_tag, close_tag
        self._after_blanks = after_blanks
        self.keeps_newlines = False
        self._place = _Place.THINKING if inside else _Place.START
        self._held = ""

    @property
    def is_thinking(self) -> bool:
        """Whether a thought is open."""
        return self._place is _Place.THINKING

    @property
    def is_undecided(self) -> bool:
        """Whether the text may still begin with a tag."""
        return self._place is _Place.START

    @property
    def state(self) -> tuple[str, str]:
        """The current place and the text held back."""
        return self._place.name, self._held

    def restore(self, place: str, held: str) -> None:
        """Continue from a `state`."""
        self._place, self._held = _Place[place], held

    def add(self, text: str) -> list[Piece]:
        """Return the pieces decided so far; the possible beginning of a tag is held back."""
        self._held += text
        pieces: list[Piece] = []
        if self._place is _Place.START:
            self._look_for_open_tag()
        if self._place is _Place.THINKING:
            pieces.append((True, self._take_thinking()))
        if self._place is _Place.AFTER_CLOSE_TAG:
            self._drop_newlines()
        if self._place is _Place.ANSWER:
            pieces.append((False, self._held))
            self._held = ""
        return [piece for piece in pieces if piece[1]]

    def finish(self) -> list[Piece]:
        """Return the text held back, after the last text."""
        held, self._held = self._held, ""
        return [(self._place is _Place.THINKING, held)] if held else []

    def _look_for_open_tag(self) -> None:
        begun = self._held.lstrip() if self._after_blanks else self._held
        if begun.startswith(self._open_tag):
            self._held = begun[len(self._open_tag) :]
            self._place = _Place.THINKING
        elif begun.startswith(self._close_tag):
            self._held = begun[len(self._close_tag) :]
            self._place = _Place.AFTER_CLOSE_TAG
        elif not any(tag.startswith(begun) for tag in (self._open_tag, self._close_tag)):
            self._place = _Place.ANSWER

    def _take_thinking(self) -> str:
        thinking, tag, after = self._held.partition(self._close_tag)
        if tag:
            self._held = after
            self._place = _Place.AFTER_CLOSE_TAG
            return thinking
        held = _length_of_begun_tag(self._held, self._close_tag)
        decided = len(self._held) - held
        thinking, self._held = self._held[:decided], self._held[decided:]
        return thinking

    def _drop_newlines(self) -> None:
        if not self.keeps_newlines:
            self._held = self._held.lstrip("\n")
        if self._held:
            self._place = _Place.ANSWER


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
    texts: dict[bool, list[str]] = {True: [], False: []}
    for is_thought, text in pieces:
        texts[is_thought].append(text)
    return "".join(texts[True]), "".join(texts[False])


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


def _length_of_begun_tag(text: str, tag: str) -> int:
    """Length of the longest suffix of `text` that begins `tag`."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
