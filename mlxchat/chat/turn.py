"""What a conversation is made of, and what it yields while a reply is written."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mlxchat.engine.generate import Token
from mlxchat.text.spans import TokenIds


@dataclass(slots=True)
class Turn:
    """A message and its reply: all of it, whatever the window has forgotten.

    `thought` is what the model thought before its `reply`. `ids` are the tokens of both as they
    were generated, with the markers of the model's format; `exact` is whether they spell exactly
    that, with nothing cut off or left out.
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
        """Take on every value of another turn."""
        for field in fields(Turn):
            setattr(self, field.name, getattr(other, field.name))


@dataclass(frozen=True, slots=True)
class Forgot:
    """That many of the oldest turns have just left the window; or, if none was left to leave it,
    `turns` is 0 and that many single tokens of this very turn did."""

    turns: int
    tokens: int

    @property
    def text(self) -> str:
        """Nothing: it is not part of the reply."""
        return ""


# What `say`, `retry` and `continue_reply` yield. Both have a `text`; joined, the texts are the
# reply and its thought.
Said = Token | Forgot


@dataclass(frozen=True, slots=True)
class Mention:
    """A line in which a word occurs; turns count from 1."""

    turn: int
    forgotten: bool
    line: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens in the window: of the pinned beginning, of each retained turn, and how many it can
    hold (None: any number)."""

    pinned: int
    turns: tuple[tuple[Turn, int], ...]
    held: int
    window: int | None
