"""Which turns to evict: the oldest first, as few as possible, never a pinned one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from mlxchat.chat.turn import Turn
from mlxchat.text.spans import TokenIds

# Minimum number of tokens left free for a reply when a turn begins.
RESERVE = 64


def is_too_long(ids: TokenIds, window: int | None) -> bool:
    """Whether a prompt leaves too little room in the window for its reply."""
    return window is not None and len(ids) + RESERVE > window


def may_be_forgotten(retained: Sequence[Turn]) -> list[Turn]:
    """Turns that may be forgotten, oldest first; never the one being answered."""
    return [turn for turn in retained[:-1] if not turn.pinned]


def forget_until_it_fits(
    retained: Sequence[Turn], render: Callable[[], TokenIds], window: int | None
) -> TokenIds:
    """Forget as few of the oldest turns as necessary, or all of them; return the rendering of the
    turns that remain."""
    oldest = may_be_forgotten(retained)

    def render_without(count: int) -> TokenIds:
        for n, turn in enumerate(oldest):
            turn.forgotten = n < count
        return render()

    def fits_without(count: int) -> bool:
        return not is_too_long(render_without(count), window)

    return render_without(bisect_left(range(len(oldest)), True, key=fits_without))
