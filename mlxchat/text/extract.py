"""What is shown of a text: its fenced code block only, or all but the whitespace around it."""

import re

# Three or more backticks, with an info string that has none, or tildes; then the content up to a
# fence of the same character, at least as many and not far to its right, or to the end. Models
# indent fences in lists by any number of spaces, and begin them in an item's line.
# Source: https://spec.commonmark.org/0.31.2/#fenced-code-blocks
_BLOCK = re.compile(
    r"^(?P<indent>[ \t]*(?P<item>(?:[-*+]|[0-9]+[.)])[ \t]+)?)"
    r"(?=(?P<mark>[`~]))(?P<fence>`{3,}(?!.*`)|~{3,}).*\n?"
    r"(?P<content>(?s:.*?))"
    r"(?P<end>^(?(item)|(?!(?P=indent)(?:[ ]{4}|\t)))[ \t]*(?P=fence)(?P=mark)*[ \t\r]*$|\Z)",
    re.MULTILINE,
)


def extract_code(text: str) -> str:
    """The content of the first fenced code block; empty if there is none.

    The content ends with a newline unless it is empty or the text ends in it. An unclosed block
    extends to the end, as in CommonMark.
    """
    block = _BLOCK.search(text)
    if block is None:
        return ""
    # The lines without as much of the fence's indentation as they have.
    return re.sub(rf"(?m)^[ \t]{{0,{len(block['indent'])}}}", "", block["content"])


def is_settled(text: str) -> bool:
    """Whether `extract_code` would return the same if the text continued."""
    # A last line of three backticks may still become one that does not close the block.
    block = _BLOCK.search(text[: text.rfind("\n") + 1])
    return block is not None and block["end"] != ""


def closing_fence(text: str) -> str:
    """What closes the code block in which the text ends; empty if it ends in none."""
    *_, last = [None, *_BLOCK.finditer(text)]
    return "" if last is None or last["end"] else f"\n{' ' * len(last['indent'])}{last['fence']}"


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
