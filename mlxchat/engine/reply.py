"""A reply's text, from its decoded tokens, and when the reply ends.

Stop texts, the end of a turn and `max_tokens` are applied here. Computes nothing.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from mlxchat.engine.constrained import Constrained
from mlxchat.engine.draw import Decoded
from mlxchat.errors import UsageError
from mlxchat.settings import GenerationSettings
from mlxchat.text.reply_reader import Reader
from mlxchat.text.spans import TokenIds
from mlxchat.text.stop import StopTexts
from mlxchat.text.thinking import Piece


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token and the text it completed.

    The text is empty within a character, for a marker of the reply format, and while it may be the
    beginning of a stop text. Text may come without a token (id None): at the end, and if one token
    both ends the thought and begins the answer. `another` marks a token that begins another
    thought.
    """

    text: str
    id: int | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    thought: bool = False
    another: bool = False


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A state between two tokens from which to resume. The cache is separate.

    `latest` are the last ids, as many as the next step looks at; all but the very last are in the
    cache. `shown` and `pending` are the text decoder's state, `reading` the reply reader's; `held`
    may begin a stop text.
    """

    latest: tuple[int, ...]
    generated: int
    shown: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    held: str = ""
    reading: tuple[str, ...] = ()


def check_min_tokens(settings: GenerationSettings, reader: Reader) -> None:
    """Raise UsageError if the settings cannot delay the end of replies that `reader` reads."""
    if settings.min_tokens and reader.ends_by_marker:
        raise UsageError(
            "--min-tokens cannot be used with this model: the marker that ends a reply "
            "also ends its thoughts"
        )


class Reply:
    """The text that follows `ids: (T,)`, token by token.

    `reader` separates thoughts from the answer. `eos_ids` end the reply, unless the settings ignore
    them. It also ends after `max_tokens`, of which `generated` have been generated before, and once
    `constrained` lets nothing follow. `finish_reason` is then "stop", "stop_text" or "length", or
    "error" if the reply has failed.
    `context` is that of the penalties, in tokens. Raises UsageError if the settings cannot delay
    the end of replies in this format.
    """

    def __init__(
        self,
        ids: TokenIds,
        reader: Reader,
        settings: GenerationSettings,
        *,
        eos_ids: Collection[int],
        max_tokens: int,
        generated: int = 0,
        context: int = 0,
        constrained: Constrained | None = None,
    ) -> None:
        check_min_tokens(settings, reader)
        self.generated = generated
        self.max_tokens = max_tokens
        self.finish_reason: str | None = "length" if generated == max_tokens else None
        self._reader = reader
        self._stuck: str | None = None
        self._may_end = not settings.ignore_eos
        self._eos_ids = eos_ids
        self._constrained = constrained
        self._in_thought = reader.is_thought
        if constrained is not None:
            reader.keep_newlines()
        self._stop = StopTexts(settings.stop)
        # What the next step may look at: the context of the penalties and the token fed in.
        self._latest = deque(ids[-context - 1 :].tolist(), maxlen=context + 1)

    def restore(self, point: ResumePoint) -> Self:
        """Continue from this point."""
        self._reader.restore(point.reading, point.shown, point.pending)
        self._in_thought = self._reader.is_thought
        self._stop.restore(point.held)
        return self

    def here(self) -> ResumePoint:
        """The current point."""
        reading, shown, pending = self._reader.state
        held = self._stop.held
        return ResumePoint(tuple(self._latest), self.generated, shown, pending, held, reading)

    def add(self, token: Decoded) -> list[Token]:
        """The text completed by one more token, in pieces; none if the token ends the reply."""
        if self._may_end and (token.id in self._eos_ids or self._reader.ends(token.id)):
            self.finish_reason = "stop"
            return []
        self.generated += 1
        self._latest.append(token.id)
        pieces = self._pieces(token)
        if self._stop.found:
            self.finish_reason = "stop_text"
        elif self._constrained is not None and self._constrained.is_complete:
            self.finish_reason = "stop"
        elif self.generated == self.max_tokens:
            self.finish_reason = "length"
        return pieces

    def finish(self) -> list[Token]:
        """The text that was held back, after the last token."""
        if self._stop.found:
            return []
        rest = self._until_stop_text(self._reader.finish())
        if self._stop.found:
            self.finish_reason = "stop_text"
        rest.append((self._in_thought, self._stop.finish()))
        return [Token(text, None, thought=is_thought) for is_thought, text in rest if text]

    @property
    def is_complete(self) -> bool | None:
        """Whether the answer is one that the constraint describes; None without a constraint."""
        if self._constrained is None:
            return None
        return self._has_form and self.problem is None

    @property
    def problem(self) -> str | None:
        """Why an answer that was not cut off is none that the constraint describes."""
        if self._stuck is None and self._constrained is not None and self._has_form:
            found = self._constrained.problem
            return None if found is None else f"the answer is not valid: {found}"
        return self._stuck

    @property
    def _has_form(self) -> bool:
        """Whether the answer is one that the grammar allows."""
        assert self._constrained is not None
        return self.finish_reason not in ("stop_text", "error") and self._constrained.may_end

    def fail(self, reason: object) -> None:
        """End the reply: its constraint does not let it continue."""
        self.finish_reason, self._stuck = "error", f"the answer got stuck: {reason}"

    def _pieces(self, token: Decoded) -> list[Token]:
        begun, thoughts = self._reader.is_thought, self._reader.thoughts
        pieces = self._until_stop_text(self._reader.add(token.id))
        (thought, text), *others = pieces or [(begun or self._reader.is_thought, "")]
        another = self._reader.thoughts > max(thoughts, 1)
        return [
            Token(text, token.id, token.logprob, token.top, thought, another),
            *(Token(text, None, thought=is_thought) for is_thought, text in others),
        ]

    def _until_stop_text(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces up to a stop text, which cannot span a thought and an answer."""
        shown: list[Piece] = []
        for thought, text in pieces:
            if thought is not self._in_thought:
                shown.append((self._in_thought, self._stop.finish()))
                self._in_thought = thought
            shown.append((thought, self._stop.add(text)))
            if self._stop.found:
                break
        return [piece for piece in shown if piece[1]]
