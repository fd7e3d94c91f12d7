"""Colours for JSON that appears piece by piece on a terminal."""

import os

from mlxchat.text.thinking import THINK_TAGS

KEY, STRING, NUMBER, NULL, RESET = "\x1b[34;1m", "\x1b[32m", "\x1b[33m", "\x1b[90m", "\x1b[0m"
WORDS = {"n": NULL, "t": NUMBER, "f": NUMBER}


def wants_colours() -> bool:
    """Whether the user's environment allows colours."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


class JsonColours:
    """Adds colours to visible text. Each piece ends without a colour, so that an interruption
    leaves the terminal as it was. Thoughts before the JSON stay as they are."""

    def __init__(self) -> None:
        self._open: list[str] = []  # brackets
        self._colour = ""
        self._in_string = self._is_escaped = False
        self._expects_key = False
        self._before = ""
        self._has_begun = False

    def add(self, text: str) -> str:
        begun = self._after_thoughts(text)
        pieces = [text[: len(text) - len(begun)]]
        shown = ""
        for character in begun:
            colour = self._colour_of(character)
            if colour != shown:
                pieces.append(f"{RESET if shown else ''}{colour}")
            pieces.append(character)
            shown = colour
        return "".join(pieces) + (RESET if shown else "")

    def _after_thoughts(self, text: str) -> str:
        """The part of the text that is JSON."""
        if self._has_begun:
            return text
        opens, closes = THINK_TAGS
        self._before += text
        if not self._before.startswith(opens[: len(self._before)]):
            self._has_begun = True
            return text
        _, found, after = self._before.partition(closes)
        self._has_begun = bool(found)
        return after

    def _colour_of(self, character: str) -> str:
        if self._in_string:
            ends = character == '"' and not self._is_escaped
            self._is_escaped = character == "\\" and not self._is_escaped
            self._in_string = not ends
            return self._colour
        if character == '"':
            self._in_string = True
            self._colour = KEY if self._expects_key else STRING
            return self._colour
        if character in "{}[],:":
            self._take_punctuation(character)
            return ""
        if character.isspace():
            self._colour = ""
            return ""
        if not self._colour:
            self._colour = WORDS.get(character, NUMBER)
        return self._colour

    def _take_punctuation(self, character: str) -> None:
        self._colour = ""
        if character in "{[":
            self._open.append(character)
        elif character in "}]" and self._open:
            self._open.pop()
        self._expects_key = character in "{," and self._open[-1:] == ["{"]
