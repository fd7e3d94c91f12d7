"""Reads the items of a large JSON array one by one, without holding the whole file."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any

CHUNK_BYTES = 1 << 22
# The largest conversations have a few million characters.
MAX_ITEM_CHARS = 1 << 26
# A number, literal or escape that is cut off at the end of what is held is no longer than this.
LONGEST_TOKEN = 16

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def items(file: IO[bytes]) -> Iterator[Any]:
    """The items of the array in the file, or the only value if that is not an array.

    Raises OSError, and ValueError, saying why, where the text is no longer JSON; all items before
    are yielded.
    """
    text = _Text(file)
    if text.peek() != "[":
        yield text.value()
        text.end()
        return
    text.skip()
    if text.peek() != "]":
        yield text.value()
        while text.peek() == ",":
            text.skip()
            yield text.value()
    if text.peek() != "]":
        raise ValueError("it is cut off" if not text.peek() else "it is damaged")
    text.skip()
    text.end()


class _Text:
    """The text of a file, of which only as much is held as the value being read needs."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._text = ""
        self._at = 0
        self._ended = False

    def peek(self) -> str:
        """The next character that is not a space; empty at the end."""
        while True:
            self._at = _end(_SPACE.match(self._text, self._at))
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._more()

    def skip(self) -> None:
        self._at += 1

    def end(self) -> None:
        """Raises ValueError if anything follows."""
        if self.peek():
            raise ValueError("it is damaged: something follows the end")

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise ValueError("it is nested too deeply") from None
            except ValueError as error:
                self._hold_more(error)
                continue
            # A number at the end of what is held may go on.
            if end < len(self._text) or self._ended:
                self._at = end
                return value
            self._hold_more(None)

    def _hold_more(self, error: ValueError | None) -> None:
        """What is held may end within the value."""
        if error is not None and not _may_be_cut_off(error, self._text):
            raise ValueError("it is damaged")
        if self._ended:
            raise ValueError("it is cut off")
        held = len(self._text) - self._at
        if held >= MAX_ITEM_CHARS:
            raise ValueError(f"one conversation has more than {MAX_ITEM_CHARS:,} characters")
        # Twice as much each time: a value is parsed few times.
        while not self._ended and len(self._text) - self._at < 2 * held:
            self._more()

    def _more(self) -> None:
        data = self._file.read(CHUNK_BYTES)
        self._ended = not data
        self._text = self._text[self._at :] + self._decoder.decode(data, final=self._ended)
        self._at = 0


def _end(match: re.Match[str] | None) -> int:
    assert match is not None
    return match.end()


def _may_be_cut_off(error: ValueError, text: str) -> bool:
    """Whether the text ends too early, rather than containing something wrong."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or len(text) - error.pos < LONGEST_TOKEN
