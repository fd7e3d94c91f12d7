"""Renders turns with the chat template into token ids. Knows nothing about the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxchat.chat.ledger import Ledger
from mlxchat.chat.turn import Turn
from mlxchat.progress import Progress
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import ChatMessage, Tokenizer

NOTHING = np.empty(0, np.int32)

# Before a note about forgotten turns, which follows the system prompt.
NOTE_BEGINS = "Your note on the conversation so far:"


@dataclass(slots=True)
class Rendering:
    """The template's input in addition to the turns. The `note` follows the system prompt. The
    user's `template_args` override `variables`. `notices` come from the latest rendering."""

    tokenizer: Tokenizer
    system: str | None
    variables: Mapping[str, Any]
    template_args: Mapping[str, Any]
    notices: tuple[str, ...] = ()
    note: str | None = None

    @property
    def system_text(self) -> str | None:
        """The system prompt and the note."""
        note = None if self.note is None else f"{NOTE_BEGINS}\n{self.note}"
        return "\n\n".join(filter(None, [self.system, note])) if note else self.system

    def ids(self, turns: Sequence[Turn], on_encode: Progress | None = None) -> TokenIds:
        """Token ids `(T,)` of the complete turns and a last one to be answered, up to where its
        reply begins."""
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

    def beginning_of(self, first: Turn, start: int, stop: int) -> TokenIds:
        """Tokens `start` to `stop` of a text that begins with this turn, as far as they belong to
        it."""
        alone, with_first = (self.ids([*turns, Turn("a")]) for turns in ([], [first]))
        return with_first[start : min(stop, start + len(with_first) - len(alone))]
