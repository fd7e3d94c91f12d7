"""Messages that keep the names of settings and commands apart from their other words.

Python knows a setting by its field, the command line by a flag, a chat by `/set`. So a message
carries the names themselves, spelled for its reader when it is shown (`terminal.spelling`).
Nothing in a message is ever interpreted: paths and what users typed may contain anything.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self


@dataclass(frozen=True, slots=True)
class Field:
    """A setting by the name of its field; with a `value`, giving it that one."""

    name: str
    value: Any = ...

    @property
    def has_value(self) -> bool:
        return self.value is not ...

    def __str__(self) -> str:
        """As Python spells it: `keep`, `max_kv_size=None`."""
        if not self.has_value:
            return self.name
        value = self.value
        plain = isinstance(value, bool | int | float) or value is None
        return f"{self.name}={value if plain else repr(str(value))}"


@dataclass(frozen=True, slots=True)
class Action:
    """Something to do for which there is a command; `plain` says it without one."""

    name: Literal["clear", "edit config", "pull", "set default"]
    plain: str
    argument: str = ""

    def __str__(self) -> str:
        return self.plain


Name = Field | Action


class Message(str):
    """A text for people, made of words and names; as a `str`, it reads as Python spells them."""

    words: tuple[str | Name, ...]

    def __new__(cls, *words: object) -> Self:
        """Of texts, names, messages, and exceptions, whose own messages become part of it."""
        flat = tuple(each for word in words for each in _words_of(word))
        message = super().__new__(cls, "".join(map(str, flat)))
        message.words = flat
        return message

    def spelled(self, spell: Callable[[Name], str]) -> str:
        """The text with its names as `spell` has them."""
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
