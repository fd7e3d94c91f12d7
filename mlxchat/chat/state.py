"""The state of a conversation: everything that was said, and which of it the model may see.

Immutable: going back is to take an earlier one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Any

from mlxchat.chat.turn import Mention, Turn

# Before a note about forgotten turns, which follows the system prompt.
NOTE_BEGINS = "Your note on the conversation so far:"


@dataclass(frozen=True, slots=True)
class State:
    """Turns in order, numbered from 1; the first `cleared` were cleared away. The `note` follows
    the system prompt. The `quote` comes before the last message, while that is answered."""

    system: str | None = None
    note: str | None = None
    turns: tuple[Turn, ...] = ()
    cleared: int = 0
    quote: str = ""

    @property
    def system_text(self) -> str | None:
        """The system prompt and the note."""
        note = None if self.note is None else f"{NOTE_BEGINS}\n{self.note}"
        return "\n\n".join(filter(None, [self.system, note])) if note else self.system

    @property
    def retained(self) -> tuple[Turn, ...]:
        """The turns that the model may see."""
        return tuple(turn for turn in self.turns if not turn.forgotten)

    @property
    def in_view(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(n for n, turn in enumerate(self.turns, 1) if not turn.forgotten)

    @property
    def forgotten(self) -> tuple[Turn, ...]:
        return tuple(turn for turn in self.turns if turn.forgotten)

    @property
    def pinned(self) -> tuple[int, ...]:
        """The numbers of pinned turns."""
        return tuple(n for n, turn in enumerate(self.turns, 1) if turn.pinned)

    @property
    def pinned_earlier(self) -> tuple[Turn, ...]:
        """The pinned turns before the last one."""
        return tuple(turn for turn in self.turns[:-1] if turn.pinned)

    @property
    def may_be_forgotten(self) -> tuple[int, ...]:
        """The numbers of turns that may be forgotten, oldest first; never the last one."""
        return tuple(n for n in self.in_view[:-1] if not self.turns[n - 1].pinned)

    @property
    def last(self) -> Turn | None:
        """The last turn since everything was cleared."""
        return self.turns[-1] if len(self.turns) > self.cleared else None

    # Other states

    def only(self, *turns: Turn) -> State:
        """With these turns and no others."""
        return replace(self, turns=turns, cleared=0)

    def add(self, turn: Turn) -> State:
        return replace(self, turns=(*self.turns, turn), quote="")

    def without_last(self) -> State:
        turns = self.turns[:-1]
        return replace(self, turns=turns, cleared=min(self.cleared, len(turns)), quote="")

    def with_last(self, turn: Turn) -> State:
        return replace(self, turns=(*self.turns[:-1], turn))

    def change(self, numbers: Container[int], **flags: Any) -> State:
        """With `forgotten` or `pinned` of the turns of these numbers changed."""
        turns = enumerate(self.turns, 1)
        return replace(
            self, turns=tuple(replace(turn, **flags) if n in numbers else turn for n, turn in turns)
        )

    def forget(self, numbers: Iterable[int]) -> State:
        return self.change(frozenset(numbers), forgotten=True)

    def with_pins(self, numbers: Iterable[int]) -> State:
        """With the turns of these numbers pinned, and no others."""
        wanted, pinned = {*numbers}, {*self.pinned}
        return self.change(pinned - wanted, pinned=False).change(wanted - pinned, pinned=True)

    def clear(self) -> State:
        """With all turns forgotten, pinned ones and the note included."""
        cleared = self.change(range(1, len(self.turns) + 1), forgotten=True, pinned=False)
        return replace(cleared, note=None, cleared=len(self.turns), quote="")

    def recall(self, word: str) -> list[Mention]:
        """Every line that contains the word, ignoring case, forgotten turns included."""
        return [
            Mention(number, turn.forgotten, line)
            for number, turn in enumerate(self.turns, 1)
            for text in (turn.user, turn.thought, turn.reply)
            for line in text.splitlines()
            if word.lower() in line.lower()
        ]
