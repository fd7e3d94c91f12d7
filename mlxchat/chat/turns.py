"""All turns of a conversation, permanently, and which of them the model may still see: of those
that do not fit, the oldest leave first, as few as possible, never a pinned one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlxchat.chat.turn import Mention, Turn
from mlxchat.errors import UsageError
from mlxchat.text.spans import TokenIds

# Minimum number of tokens left free for a reply when a turn begins.
RESERVE = 64


class Turns(list[Turn]):
    """Turns in order; the first `cleared` were cleared away."""

    def __init__(self) -> None:
        super().__init__()
        self.cleared = 0

    def become(self, turns: Iterable[Turn]) -> None:
        """Replace all turns with those of a saved conversation."""
        self[:] = turns
        # If everything is forgotten, the conversation was saved right after it was cleared.
        self.cleared = len(self) if all(turn.forgotten for turn in self) else 0

    @property
    def retained(self) -> list[Turn]:
        return [turn for turn in self if not turn.forgotten]

    @property
    def forgotten(self) -> list[Turn]:
        return [turn for turn in self if turn.forgotten]

    @property
    def first(self) -> Turn | None:
        """The first turn since everything was cleared."""
        return self[self.cleared] if len(self) > self.cleared else None

    @property
    def last(self) -> Turn | None:
        """The last turn since everything was cleared."""
        return self[-1] if len(self) > self.cleared else None

    def take_back(self) -> Turn:
        turn = self.pop()
        self.cleared = min(self.cleared, len(self))
        return turn

    def in_view(self, number: int) -> Turn:
        """The turn of this number, counted from 1. Raises UsageError if the model cannot see it."""
        if not 1 <= number <= len(self):
            raise UsageError(f"no turn {number}")
        turn = self[number - 1]
        if turn.forgotten:
            raise UsageError(f"turn {number} has been forgotten")
        return turn

    def pin(self, number: int) -> None:
        self.in_view(number).pinned = True

    def numbers_of(self, turns: Sequence[Turn]) -> tuple[int, ...]:
        """The numbers of these turns, counted from 1."""
        ids = {id(turn) for turn in turns}
        return tuple(number for number, turn in enumerate(self, 1) if id(turn) in ids)

    def unpin(self) -> None:
        """Allow all pinned turns to be forgotten again."""
        for turn in self:
            turn.pinned = False

    def forget(self, count: int) -> int:
        """Forget the `count` oldest turns that are not pinned; return how many were forgotten."""
        oldest = [turn for turn in self.retained if not turn.pinned][:count]
        for turn in oldest:
            turn.forgotten = True
        return len(oldest)

    def clear_away(self) -> None:
        """Forget all turns, pinned ones included."""
        for turn in self:
            turn.forgotten, turn.pinned = True, False
        self.cleared = len(self)

    def recall(self, word: str) -> list[Mention]:
        """Every line that contains the word, ignoring case, forgotten turns included."""
        return [
            Mention(number, turn.forgotten, line)
            for number, turn in enumerate(self, 1)
            for text in (turn.user, turn.thought, turn.reply)
            for line in text.splitlines()
            if word.lower() in line.lower()
        ]


def is_too_long(ids: TokenIds, window: int | None) -> bool:
    """Whether a prompt leaves too little room in the window for its reply."""
    return window is not None and len(ids) + RESERVE > window


def may_be_forgotten(retained: Sequence[Turn]) -> list[Turn]:
    """Turns that may be forgotten, oldest first; never the one being answered."""
    return [turn for turn in retained[:-1] if not turn.pinned]
