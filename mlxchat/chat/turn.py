"""The parts of a conversation, and what it yields while a reply is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlxchat.engine.sampling import Token
from mlxchat.text.spans import TokenIds


@dataclass(frozen=True, slots=True)
class Turn:
    """A message and its complete reply, forgotten or not.

    `thought` is the model's thinking before its `reply`. `ids` are the tokens generated for both,
    with the markers of the model's format. `exact` is whether they spell thought and reply
    exactly, with nothing cut off or left out. `later_thoughts` are the positions in `thought` at
    which further thoughts begin. `time` is when the message was said, in ISO 8601, if known.
    """

    user: str
    reply: str = ""
    ids: TokenIds | None = None
    exact: bool = False
    pinned: bool = False
    forgotten: bool = False
    finish_reason: str = ""
    thought: str = ""
    later_thoughts: tuple[int, ...] = ()
    time: str = ""

    @property
    def thoughts(self) -> list[str]:
        """The thoughts one by one, without whitespace around them."""
        starts = [0, *self.later_thoughts]
        ends = [*self.later_thoughts, len(self.thought)]
        texts = [self.thought[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        return [text for text in texts if text]


@dataclass(frozen=True, slots=True)
class Forgot:
    """Whole turns that have just left the window, with their `tokens` in it.

    `numbers` are the turns' numbers, counted from 1; `message` is the text of the oldest. If one
    turn is larger than the window, `turns` is 0 and `tokens` tokens of that turn left instead.
    """

    turns: int
    tokens: int
    numbers: tuple[int, ...] = ()
    message: str = ""
    # It is not part of the reply.
    text: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Recalled:
    """The turns `numbers`, counted from 1, are quoted before the message; `messages` are theirs.
    The quote has this many `tokens`, and leaves the window after the reply."""

    numbers: tuple[int, ...]
    messages: tuple[str, ...]
    tokens: int
    # It is not part of the reply.
    text: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A note about the turns `numbers`, counted from 1, which have left the window for it.

    `tokens` are the note's. Writing it took `prefilled_tokens`, `generated_tokens` and `seconds`.
    """

    note: str
    numbers: tuple[int, ...]
    tokens: int
    prefilled_tokens: int
    generated_tokens: int
    seconds: float


# What has left the window, or is back in it.
Change = Forgot | Recalled
# What `say`, `retry` and `continue_reply` yield. Joined, the texts are the reply and its thought.
Said = Token | Change


@dataclass(frozen=True, slots=True)
class Mention:
    """A line that contains a word; turns count from 1."""

    turn: int
    forgotten: bool
    line: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the conversation before the next message: of the system prompt and the template,
    `note` of them of the note, and of each turn in view. `window` is the maximum (None: no limit).

    Before the window is rearranged for the next message, the turns may take more than it holds.
    """

    pinned: int
    turns: tuple[tuple[Turn, int], ...]
    window: int | None
    note: int = 0

    @property
    def tokens(self) -> int:
        return self.pinned + sum(tokens for _, tokens in self.turns)
