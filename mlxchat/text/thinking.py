"""The pieces of a reply, thoughts or answer, and both as one text for pipes."""

from collections.abc import Iterable

# Whether it is a thought, and its text.
Piece = tuple[bool, str]

# The tags for thoughts in plain-text output, whatever the model's own markers.
THINK_TAGS = ("<think>", "</think>")


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
