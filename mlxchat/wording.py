"""Messages that keep setting and command names separate from their text.

A setting is a field in Python, a flag on the command line and a `/set` name in chat, so a message
carries names as objects, spelled for the reader when shown (`terminal.spelling`). Nothing in a
message is ever interpreted: paths and user input may contain anything.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self


@dataclass(frozen=True, slots=True)
class Field:
    """A setting, named by its field; with `value`, the setting given that value."""

    name: str
    value: Any = ...

    @property
    def has_value(self) -> bool:
        return self.value is not ...

    def __str__(self) -> str:
        """The Python spelling: `keep`, `max_kv_size=None`."""
        if not self.has_value:
            return self.name
        value = self.value
        plain = isinstance(value, bool | int | float) or value is None
        return f"{self.name}={value if plain else repr(str(value))}"


@dataclass(frozen=True, slots=True)
class Action:
    """A step that a command performs; `plain` describes it without the command."""

    name: Literal[
        "clear",
        "continue",
        "edit config",
        "list catalog",
        "list models",
        "pull",
        "retry",
        "set default",
        "unpin",
    ]
    plain: str
    argument: str = ""

    def __str__(self) -> str:
        return self.plain


Name = Field | Action


class Message(str):
    """A message made of text and names; as a `str`, it has Python's spelling."""

    words: tuple[str | Name, ...]

    def __new__(cls, *words: object) -> Self:
        """Join texts, names, messages, and exceptions, whose messages are taken apart likewise."""
        flat = tuple(each for word in words for each in _words_of(word))
        message = super().__new__(cls, "".join(map(str, flat)))
        message.words = flat
        return message

    def spelled(self, spell: Callable[[Name], str]) -> str:
        """The text with each name as `spell` writes it."""
        return "".join(word if isinstance(word, str) else spell(word) for word in self.words)


def _words_of(word: object) -> Iterator[str | Name]:
    if isinstance(word, Message):
        yield from word.words
    elif isinstance(word, Name):
        yield word
    elif isinstance(word, BaseException) and word.args and isinstance(word.args[0], Message):
        yield from word.args[0].words
    else:
        yield str(word)
