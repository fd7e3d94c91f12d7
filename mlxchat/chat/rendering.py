"""Renders states with the chat template into token ids, and finds what fits in a window: the system
prompt, a note, pinned turns, and as many of the latest turns as possible. Changes nothing."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlxchat.chat.state import State, Turn
from mlxchat.errors import InputError, TemplateError, UsageError, WindowTooSmall
from mlxchat.request.written import allows_thinking, thinking_variables
from mlxchat.text.encoder import TokenIds, common_length
from mlxchat.text.tokens import ChatMessage, Tokenizer
from mlxchat.units import Progress

# How the template and the tokenizer reject a message.
Rejected = (TemplateError, InputError)

# Placeholder for a message that is not written yet.
EMPTY = Turn("a")


@dataclass(slots=True)
class Rendering:
    """The template's input in addition to a state. The user's `template_args` override `variables`.
    `notices` come from the latest rendering. `left_out` are how many of the earliest turns the
    template rejects beside later ones."""

    tokenizer: Tokenizer
    variables: Mapping[str, Any]
    template_args: Mapping[str, Any]
    notices: tuple[str, ...] = ()
    left_out: int = 0
    # Whether the template accepts a turn, by the system prompt and the turn's texts.
    _accepted: dict[tuple[str | None, ...], bool] = field(
        default_factory=dict[tuple[str | None, ...], bool], init=False, repr=False
    )

    def ids(self, state: State, on_encode: Progress | None = None) -> TokenIds:
        """Token ids `(T,)` of the turns in view: complete ones and a last one to be answered, up to
        where its reply begins. Complete turns that are rejected, such as those with an empty reply,
        are left out. Raises TemplateError or InputError if the last one is rejected."""
        *complete, last = state.retained
        if state.quote:
            last = replace(last, user=state.quote + last.user)
        system = state.system_text
        try:
            return self._ids(system, [*complete, last], on_encode)
        except Rejected:
            if not complete:
                raise
        self._ids(system, [last], on_encode)
        kept = [turn for turn in complete if self._accepts(system, turn)]
        try:
            return self._ids(system, [*kept, last], on_encode)
        except Rejected:
            # Each is accepted alone, but not all together: as many of the latest as possible.
            self.left_out = bisect_left(
                range(len(kept)), True, key=lambda n: self._is_accepted(system, [*kept[n:], last])
            )
        return self._ids(system, [*kept[self.left_out :], last], on_encode)

    def _accepts(self, system: str | None, turn: Turn) -> bool:
        key = system, turn.user, turn.thought, turn.reply
        if key not in self._accepted:
            self._accepted[key] = self._is_accepted(system, [turn, EMPTY])
        return self._accepted[key]

    def _is_accepted(self, system: str | None, turns: Sequence[Turn]) -> bool:
        try:
            self._ids(system, turns)
        except Rejected:
            return False
        return True

    def _ids(
        self, system: str | None, turns: Sequence[Turn], on_encode: Progress | None = None
    ) -> TokenIds:
        messages: list[ChatMessage] = []
        for turn in turns:
            messages.append(ChatMessage("user", turn.user))
            messages.append(ChatMessage("assistant", turn.reply, turn.ids, turn.thought))
        variables = {**self.variables, **self.template_args}
        prompt = self.tokenizer.chat(
            messages[:-1], system, variables=variables, on_progress=on_encode
        )
        self.notices = prompt.notices
        return prompt.ids

    @property
    def thinks(self) -> bool:
        """Whether its variables leave thinking on."""
        return allows_thinking({**self.variables, **self.template_args})

    def with_thinking(self, wanted: bool) -> Rendering:
        """The same with thinking on or off, whatever the user's own variables say."""
        names, both = thinking_variables(False), (self.variables, self.template_args)
        others, args = ({n: each for n, each in of.items() if n not in names} for of in both)
        return replace(self, variables=others | thinking_variables(wanted), template_args=args)

    def count_pinned(self, state: State) -> int:
        """Number of tokens before the first user's text, which no turn can change."""
        one, other = (self.ids(state.beginning.add(Turn(text))) for text in "ab")
        return common_length(one, other)

    def note_tokens(self, state: State) -> int:
        """The tokens of the note."""
        return len(self.tokenizer.encode(State(note=state.note).system_text or ""))

    def remembered_tokens(self, state: State) -> int:
        """The tokens of what is remembered."""
        return len(self.tokenizer.encode(state.remembered_text))

    def tokens_of_text(self, state: State, text: str) -> int:
        """How many tokens this text adds to the next message, in front of it."""
        return self.tokens_of(state, Turn(f"{text}a")) - self.tokens_of(state, Turn("a"))

    def tokens_of(self, state: State, *turns: Turn) -> int:
        """The rendered length of complete turns, without what precedes all turns."""
        begin = state.beginning
        return len(self.ids(begin.only(*turns, EMPTY))) - len(self.ids(begin.only(EMPTY)))


# Minimum number of tokens left free for a reply when a turn begins.
RESERVE = 64


def is_too_long(ids: TokenIds, window: int | None) -> bool:
    """Whether a prompt leaves too little room in the window for its reply."""
    return window is not None and len(ids) + RESERVE > window


def fitted(
    rendering: Rendering, state: State, window: int | None, on_encode: Progress | None = None
) -> tuple[State, TokenIds]:
    """The state with as few of the oldest turns forgotten as necessary, and its rendering."""
    oldest = state.may_be_forgotten

    def without(count: int) -> tuple[State, TokenIds]:
        smaller = state.forget(oldest[:count]) if count else state
        return smaller, rendering.ids(smaller, on_encode)

    whole = without(0)
    if not is_too_long(whole[1], window):
        return whole
    counts = range(1, len(oldest))
    place = bisect_left(counts, True, key=lambda n: not is_too_long(without(n)[1], window))
    return without(min(place + 1, len(oldest)))


def room_for_more(rendering: Rendering, state: State, window: int | None) -> float:
    """How many tokens have room beside what stays (system prompt, note, pins) and a reply."""
    if window is None:
        return math.inf
    pinned = [turn for turn in state.retained if turn.pinned]
    taken = rendering.count_pinned(state) + rendering.tokens_of(state, *pinned)
    return window - taken - 2 * RESERVE


def check_room(rendering: Rendering, state: State, window: int | None) -> int:
    """How many tokens precede the first user's text. Raises WindowTooSmall if no room is left."""
    pinned = rendering.count_pinned(state)
    if window is not None and window < pinned + 2 * RESERVE:
        note, lines = "note" * (state.note is not None), "remembered lines" * bool(state.remembered)
        texts = ", ".join(filter(None, ["system prompt", note, lines]))
        raise WindowTooSmall(
            f"--max-kv-size {window} is too small for a {texts} and chat template of {pinned} "
            f"tokens, a message and its reply: use {pinned + 2 * RESERVE} or more"
        )
    return pinned


def check_pin(rendering: Rendering, state: State, window: int | None, number: int) -> None:
    """Raises UsageError if the turn is not in view, or pinning it too would leave no room."""
    if not 1 <= number <= len(state.turns):
        raise UsageError(f"no turn {number}")
    turn = state.turns[number - 1]
    if turn.forgotten:
        raise UsageError(f"turn {number} has been forgotten")
    tokens = rendering.tokens_of(state, turn)
    if tokens == 0:
        raise UsageError("the chat template rejects this turn: the model cannot see it")
    room = room_for_more(rendering, state.change({number}, pinned=False), window)
    if tokens > room and not turn.pinned:
        unpin = ", or unpin other turns (/unpin)" if state.pinned else ""
        raise UsageError(
            f"too large to pin: the turn has {tokens:,} tokens, and beside a message and its reply "
            f"the window has room for {max(room, 0):,}: use a larger --max-kv-size{unpin}"
        )


def check_note(rendering: Rendering, state: State, window: int | None, text: str) -> None:
    """Raises UsageError if the note is empty or has more tokens than there is room for."""
    if not text:
        raise UsageError("the note is empty")
    with_note, without = (replace(state, note=note) for note in (text, ""))
    tokens = rendering.count_pinned(with_note) - rendering.count_pinned(without)
    room = room_for_more(rendering, without, window)
    if tokens > room:
        free = f"beside a message and its reply the window has room for {max(room, 0):,}"
        raise UsageError(f"the note does not fit: it has {tokens:,} tokens, and {free}")
