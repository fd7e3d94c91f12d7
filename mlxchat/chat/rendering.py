"""Renders turns with the chat template into token ids. Knows nothing about the window."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mlxchat.chat.ledger import Ledger
from mlxchat.chat.turn import Turn
from mlxchat.errors import InputError, TemplateError
from mlxchat.progress import Progress
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import ChatMessage, Tokenizer

NOTHING = np.empty(0, np.int32)

# How the template and the tokenizer reject a message.
Rejected = (TemplateError, InputError)

# Placeholder for a message that is not written yet.
EMPTY = Turn("a")

# Before a note about forgotten turns, which follows the system prompt.
NOTE_BEGINS = "Your note on the conversation so far:"


@dataclass(slots=True)
class Rendering:
    """The template's input in addition to the turns. The `note` follows the system prompt. The
    user's `template_args` override `variables`. `notices` come from the latest rendering.
    `left_out` are how many of the earliest turns the template rejects beside later ones."""

    tokenizer: Tokenizer
    system: str | None
    variables: Mapping[str, Any]
    template_args: Mapping[str, Any]
    notices: tuple[str, ...] = ()
    note: str | None = None
    left_out: int = 0
    # Whether the template accepts a turn, by its texts.
    _accepted: dict[tuple[str, str, str], bool] = field(
        default_factory=dict[tuple[str, str, str], bool], init=False, repr=False
    )

    @property
    def system_text(self) -> str | None:
        """The system prompt and the note."""
        note = None if self.note is None else f"{NOTE_BEGINS}\n{self.note}"
        return "\n\n".join(filter(None, [self.system, note])) if note else self.system

    def ids(self, turns: Sequence[Turn], on_encode: Progress | None = None) -> TokenIds:
        """Token ids `(T,)` of the complete turns and a last one to be answered, up to where its
        reply begins. Complete turns that are rejected, such as those with an empty reply, are left
        out. Raises TemplateError or InputError if the last one is rejected."""
        try:
            return self._ids(turns, on_encode)
        except Rejected:
            *complete, last = turns
            if not complete:
                raise
        self._ids([last], on_encode)
        kept = [turn for turn in complete if self._accepts(turn)]
        try:
            return self._ids([*kept, last], on_encode)
        except Rejected:
            # Each is accepted alone, but not all together: as many of the latest as possible.
            self.left_out = bisect_left(
                range(len(kept)), True, key=lambda n: self._is_accepted([*kept[n:], last])
            )
        return self._ids([*kept[self.left_out :], last], on_encode)

    def _accepts(self, turn: Turn) -> bool:
        key = turn.user, turn.thought, turn.reply
        if key not in self._accepted:
            self._accepted[key] = self._is_accepted([turn, Turn("a")])
        return self._accepted[key]

    def _is_accepted(self, turns: Sequence[Turn]) -> bool:
        try:
            self._ids(turns)
        except Rejected:
            return False
        return True

    def _ids(self, turns: Sequence[Turn], on_encode: Progress | None = None) -> TokenIds:
        messages: list[ChatMessage] = []
        for turn in turns:
            messages.append(ChatMessage("user", turn.user))
            ids = turn.ids if turn.exact else None
            messages.append(ChatMessage("assistant", turn.reply, ids, turn.thought))
        variables = {**self.variables, **self.template_args}
        prompt = self.tokenizer.chat(
            messages[:-1], self.system_text, variables=variables, on_progress=on_encode
        )
        self.notices = prompt.notices
        return prompt.ids

    def count_pinned(self) -> int:
        """Number of tokens before the first user's text, which no turn can change."""
        one, other = self.ids([Turn("a")]), self.ids([Turn("b")])
        return Ledger(None, 0, one).common_prefix(other)

    def tokens_of(self, *turns: Turn) -> int:
        """The rendered length of complete turns, without what precedes all turns."""
        return len(self.ids([*turns, EMPTY])) - len(self.ids([EMPTY]))

    def tokens_of_system(self, note: str | None) -> int:
        """The tokens before the first user's text, with this note."""
        return replace(self, note=note).count_pinned()

    def beginning_of(self, first: Turn, start: int, stop: int) -> TokenIds:
        """Tokens `start` to `stop` of a text that begins with this turn, as far as they belong to
        it."""
        alone, with_first = (self.ids([*turns, Turn("a")]) for turns in ([], [first]))
        return with_first[start : min(stop, start + len(with_first) - len(alone))]
