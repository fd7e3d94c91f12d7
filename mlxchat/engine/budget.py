"""A budget for the thoughts in a reply: the tokens that close a thought once it is spent."""

from collections import deque

from mlxchat.settings import GenerationSettings
from mlxchat.text.encoder import TokenIds
from mlxchat.text.reply_reader import Reader
from mlxchat.text.tokens import Tokenizer

# More tokens than a character or a tag has, which is completed first if it has begun.
GRACE = 32


class Budget:
    """Follows a reply token by token. All its thoughts together may have this many `tokens`.

    `reader` reads it from here on, and `closings` are those of a tokenizer. `latest` are the ids
    before, at the end of which the closing may have begun. `forced` are the tokens that have to
    follow; `is_cut` is whether any have, and `was_forced` whether the last one was.
    """

    def __init__(
        self, tokens: int, reader: Reader, closings: tuple[list[int], list[int]], latest: TokenIds
    ) -> None:
        self.forced: deque[int] = deque()
        self.is_cut = self.was_forced = False
        self._tokens = tokens
        self._reader = reader
        self._closings = closings
        size = max(map(len, closings))
        self._latest = deque(latest[-size:].tolist(), size)
        self._close()

    def accept(self, id_: int) -> None:
        self.was_forced = bool(self.forced)
        if self.forced:
            self.forced.popleft()
            self.is_cut = True
        self._latest.append(id_)
        self._reader.add(id_, counts=not self.was_forced)
        if not self.forced:
            self._close()

    def _close(self) -> None:
        """Close the thought if it is time to."""
        reader, spent = self._reader, self._reader.thought_tokens - self._tokens
        if not reader.is_thought or spent < 0:
            return
        closing, latest = self._closings[not reader.leads], [*self._latest]
        lengths = range(min(len(closing), len(latest)), 0, -1)
        begun = next((n for n in lengths if latest[-n:] == closing[:n]), 0)
        if begun or not reader.holds_back or spent >= GRACE:
            self.forced.extend(closing[begun:])


def without_effect(settings: GenerationSettings, tokenizer: Tokenizer) -> list[str]:
    """What to say if the model has no thoughts that the settings could close, or a limit is lower
    than what should come at least."""
    unused = settings.think_budget >= 0 and tokenizer.closings is None
    notices = ["--think-budget has no effect: this model's replies have no thoughts"] * unused
    is_less = 0 <= settings.max_tokens < settings.min_tokens
    return notices + ["--min-tokens is more than --max-tokens, which ends the text"] * is_less
