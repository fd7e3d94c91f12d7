"""The state of a conversation: everything that was said, and which of it the model may see; and
what a conversation yields while a reply is written. Immutable: going back takes an earlier state.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from mlxchat.engine.reply import Stats
from mlxchat.engine.sampling import Token
from mlxchat.text.encoder import TokenIds


@dataclass(frozen=True, slots=True)
class Turn:
    """A message and its complete reply, forgotten or not.

    `thought` is the model's thinking before its `reply`. `ids` are the tokens generated for both,
    with the markers of the model's format; there may be more of them, for a stop text, for example.
    `later_thoughts` are the positions in `thought` at which further thoughts begin. `time` is when
    the message was said, in ISO 8601, if known. `documents` counts characters of files and quotes.
    """

    user: str
    reply: str = ""
    ids: TokenIds | None = None
    pinned: bool = False
    forgotten: bool = False
    finish_reason: str = ""
    thought: str = ""
    later_thoughts: tuple[int, ...] = ()
    time: str = ""
    documents: int = 0

    @property
    def question(self) -> str:
        """The message without its documents."""
        return self.user[self.documents :]

    @property
    def thoughts(self) -> list[str]:
        """The thoughts one by one, without whitespace around them."""
        starts = [0, *self.later_thoughts]
        ends = [*self.later_thoughts, len(self.thought)]
        texts = [self.thought[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        return [text for text in texts if text]

    def read_by(
        self, decode: Callable[[TokenIds], str], split: Callable[[str], tuple[str, str]]
    ) -> Turn:
        """Without ids of another tokenizer, which do not spell the reply; and with the thought that
        the reply begins with: transcripts of other programs have both in one text."""
        ids, texts = self.ids, [self.reply] if self.reply else self.thoughts
        bare = (each.rstrip("\ufffd").strip() for each in texts)
        spells = ids is not None and all(each in decode(ids) for each in bare)
        thought, reply = ("", self.reply) if self.thought else split(self.reply)
        parted = self if reply == self.reply else replace(self, thought=thought, reply=reply)
        return parted if spells else replace(parted, ids=None)

    def plus(self, token: Token) -> Turn:
        """With the text of one more token."""
        thought, reply = (token.text, "") if token.thought else ("", token.text)
        return replace(
            self,
            thought=self.thought + thought,
            reply=self.reply + reply,
            later_thoughts=(*self.later_thoughts, *((len(self.thought),) if token.another else ())),
        )


@dataclass(frozen=True, slots=True)
class Forgot:
    """Whole turns that have just left the window, with their `tokens` in it.

    `numbers` are the turns' numbers, counted from 1; `message` is the text of the oldest. If one
    turn is larger than the window, `turns` is 0 and it is its oldest `tokens` that leave, in all;
    without the message if it is its reply that makes it so.
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
    """A note of so many `tokens` about the turns `numbers`, counted from 1, which have left the
    window for it. `stats` are about writing it."""

    note: str
    numbers: tuple[int, ...]
    tokens: int
    stats: Stats


# What has left the window, or is back in it.
Change = Forgot | Recalled
# What `say`, `retry` and `continue_reply` yield. Joined, the texts are the reply and its thought.
Said = Token | Change


@dataclass(frozen=True, slots=True)
class Mention:
    """A line that contains the words; turns count from 1."""

    turn: int
    where: Literal["user", "thought", "reply"]
    forgotten: bool
    line: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the conversation before the next message: of the system prompt and the template,
    `remembered` of them of what is remembered, `note` of the note, and of each turn in view.
    `window` is the maximum (None: no limit).

    Before the window is rearranged for the next message, the turns may take more than it holds.
    """

    pinned: int
    turns: tuple[tuple[Turn, int], ...]
    window: int | None
    note: int = 0
    remembered: int = 0

    @property
    def tokens(self) -> int:
        return self.pinned + sum(tokens for _, tokens in self.turns)


# Before the lines that are remembered, and a note about forgotten turns.
REMEMBERED_BEGINS = "Always keep in mind:"
NOTE_BEGINS = "Your note on the conversation so far:"


@dataclass(frozen=True, slots=True)
class State:
    """Turns in order, numbered from 1; the first `cleared` were cleared away. What is `remembered`
    and the `note` follow the system prompt; the `quote` precedes the message being answered."""

    system: str | None = None
    note: str | None = None
    turns: tuple[Turn, ...] = ()
    cleared: int = 0
    quote: str = ""
    remembered: tuple[str, ...] = ()

    @property
    def system_text(self) -> str | None:
        """The system prompt, what is remembered, and the note."""
        note = None if self.note is None else f"{NOTE_BEGINS}\n{self.note}"
        more = [each for each in (self.remembered_text, note) if each]
        return "\n\n".join([self.system, *more] if self.system else more) if more else self.system

    @property
    def remembered_text(self) -> str:
        lines = "".join(f"\n- {text}" for text in self.remembered)
        return lines and f"{REMEMBERED_BEGINS}{lines}"

    @property
    def beginning(self) -> State:
        """What comes before all turns."""
        return State(self.system, self.note, remembered=self.remembered)

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
        return tuple(turn for turn in self.turns[:-1] if turn.pinned and not turn.forgotten)

    @property
    def may_be_forgotten(self) -> tuple[int, ...]:
        """The numbers of turns that may be forgotten, oldest first; never the last one."""
        return tuple(n for n in self.in_view[:-1] if not self.turns[n - 1].pinned)

    @property
    def last(self) -> Turn | None:
        """The last turn since everything was cleared."""
        return self.turns[-1] if len(self.turns) > self.cleared else None

    def changed_in(self, later: State) -> str:
        """What an action on the same turns has changed."""
        if self.cleared != later.cleared:
            return "cleared"
        if self.system != later.system:
            return "system"
        if self.remembered != later.remembered:
            return "remembered"
        if self.note != later.note:
            return "note" if later.last else "emptied"
        before, now = self.turns[-1], later.turns[-1]
        same = before.reply == now.reply and before.thought == now.thought
        return "forgotten" if same else "reply"

    def forgotten_only_in(self, later: State) -> frozenset[int]:
        """The turns that an action has made `later` forget, if it has done nothing else."""
        if not 0 < len(self.turns) == len(later.turns) or self.changed_in(later) != "forgotten":
            return frozenset()
        return frozenset(self.in_view) - {*later.in_view}

    # Other states

    def only(self, *turns: Turn) -> State:
        """With these turns and no others."""
        return replace(self, turns=turns, cleared=0)

    def add(self, *turns: Turn) -> State:
        return replace(self, turns=(*self.turns, *turns), quote="")

    def ask(self, message: str, documents: int, *, pinned: bool = False) -> State:
        """With a turn that begins now, and whose first `documents` characters are not typed."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        return self.add(Turn(message, pinned=pinned, time=time, documents=documents))

    def without_last(self) -> State:
        turns = self.turns[:-1]
        return replace(self, turns=turns, cleared=min(self.cleared, len(turns)), quote="")

    def with_last(self, turn: Turn) -> State:
        return replace(self, turns=(*self.turns[:-1], turn))

    def change(self, numbers: Container[int], **flags: Any) -> State:
        """With `forgotten` or `pinned` of the turns of these numbers changed."""
        turns = enumerate(self.turns, 1)
        changed = (replace(turn, **flags) if n in numbers else turn for n, turn in turns)
        return replace(self, turns=tuple(changed))

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

    def recall(self, words: str) -> list[Mention]:
        """Every line that contains the words, ignoring case and accents, forgotten turns too."""
        wanted = [w.rstrip(".,;:!?") or w for w in _folded(words.replace('"', " ")).split()]
        return [
            Mention(number, where, turn.forgotten, line)
            for number, turn in enumerate(self.turns, 1)
            for where in ("user", "thought", "reply")
            for line in getattr(turn, where).splitlines()
            if wanted and all(word in _folded(line) for word in wanted)
        ]


def _folded(text: str) -> str:
    """Without accents, as the index of the sessions has it."""
    return re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFKD", text)).casefold()
