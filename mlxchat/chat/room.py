"""What fits in a window: the system prompt, a note, pinned turns, and as many of the latest turns
as possible. Nothing here changes anything."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace

from mlxchat.chat.rendering import Rendering
from mlxchat.chat.state import State
from mlxchat.errors import UsageError, WindowTooSmall
from mlxchat.text.spans import TokenIds
from mlxchat.units import Progress

# Minimum number of tokens left free for a reply when a turn begins.
RESERVE = 64


def is_too_long(ids: TokenIds, window: int | None) -> bool:
    """Whether a prompt leaves too little room in the window for its reply."""
    return window is not None and len(ids) + RESERVE > window


def fitted(
    rendering: Rendering, state: State, window: int | None, on_encode: Progress | None = None
) -> tuple[State, TokenIds]:
    """The state with as few of the oldest turns forgotten as necessary, or all of them, and its
    rendering."""
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
    """How many tokens have room next to the system prompt, the note, the pinned turns, and a
    message with its reply."""
    if window is None:
        return math.inf
    pinned = [turn for turn in state.retained if turn.pinned]
    taken = rendering.count_pinned(state) + rendering.tokens_of(state, *pinned)
    return window - taken - 2 * RESERVE


def check_room(rendering: Rendering, state: State, window: int | None) -> int:
    """How many tokens come before the first user's text. Raises WindowTooSmall if they leave no
    room in the window."""
    pinned = rendering.count_pinned(state)
    if window is not None and window < pinned + 2 * RESERVE:
        texts = "system prompt and" if state.note is None else "system prompt, note and"
        raise WindowTooSmall(
            f"--max-kv-size {window} is too small for a {texts} chat template of {pinned} tokens: "
            f"use {pinned + 2 * RESERVE} or more"
        )
    return pinned


def check_pin(rendering: Rendering, state: State, window: int | None, number: int) -> None:
    """Raises UsageError if the model cannot see the turn, or if the turns that are already pinned
    and this one would leave no room in the window."""
    if not 1 <= number <= len(state.turns):
        raise UsageError(f"no turn {number}")
    turn = state.turns[number - 1]
    if turn.forgotten:
        raise UsageError(f"turn {number} has been forgotten")
    tokens = rendering.tokens_of(state, turn)
    if tokens == 0:
        raise UsageError("the chat template rejects this turn: the model cannot see it")
    room = room_for_more(rendering, state.change({number}, pinned=False), window)
    if tokens > room:
        unpin = ", or unpin other turns (/unpin)" if state.pinned else ""
        raise UsageError(
            f"too large to pin: the turn has {tokens:,} tokens, and the window has room to pin "
            f"{max(room, 0):,}: use a larger --max-kv-size{unpin}"
        )


def check_note(rendering: Rendering, state: State, window: int | None, text: str) -> None:
    """Raises UsageError if the note is empty or has more tokens than there is room for."""
    if not text:
        raise UsageError("the note is empty")
    with_note, without = (replace(state, note=note) for note in (text, ""))
    tokens = rendering.count_pinned(with_note) - rendering.count_pinned(without)
    room = room_for_more(rendering, without, window)
    if tokens > room:
        raise UsageError(
            f"the note does not fit: it has {tokens:,} tokens, and the window has room for "
            f"{max(room, 0):,}"
        )
