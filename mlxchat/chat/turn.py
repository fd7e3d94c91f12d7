"""The parts of a conversation, and what it yields while a reply is written."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mlxchat.engine.generate import Token
from mlxchat.text.spans import TokenIds


@dataclass(slots=True)
class Turn:
    """A message and its complete reply, forgotten or not.

    `thought` is the model's thinking before its `reply`. `ids` are the tokens generated for both,
    with the markers of the model's format. `exact` is whether they spell thought and reply
    exactly, with nothing cut off or left out.
    """

    user: str
    reply: str = ""
    ids: TokenIds | None = None
    exact: bool = False
    pinned: bool = False
    forgotten: bool = False
    finish_reason: str = ""
    thought: str = ""

    def become(self, other: Turn) -> None:
        """Copy every field of another turn."""
        for field in fields(Turn):
            setattr(self, field.name, getattr(other, field.name))


@dataclass(frozen=True, slots=True)
class Forgot:
    """`turns` oldest turns have just left the window. If no turn could leave, `turns` is 0 and
    `tokens` tokens of the current turn left instead."""

    turns: int
    tokens: int

    @property
    def text(self) -> str:
        """Empty: it is not part of the reply."""
        return ""


# What `say`, `retry` and `continue_reply` yield. Joined, the texts are the reply and its thought.
Said = Token | Forgot


@dataclass(frozen=True, slots=True)
class Mention:
    """A line that contains a word; turns count from 1."""

    turn: int
    forgotten: bool
    line: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens in the window: the pinned ones, those of each retained turn, the total, and the
    window's size (None: unbounded)."""

    pinned: int
    turns: tuple[tuple[Turn, int], ...]
    held: int
    window: int | None
