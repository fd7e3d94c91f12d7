"""What fits in a window at all: the system prompt, a note, and pinned turns."""

from __future__ import annotations

from collections.abc import Sequence

from mlxchat.chat.rendering import Rendering
from mlxchat.chat.turn import Turn
from mlxchat.chat.turns import RESERVE
from mlxchat.errors import UsageError, WindowTooSmall
from mlxchat.settings import CacheSettings


def check_room(rendering: Rendering, settings: CacheSettings) -> int:
    """How many tokens come before the first user's text. Raises WindowTooSmall if they leave no
    room in the window."""
    pinned = rendering.count_pinned()
    window, kept = settings.max_kv_size, max(pinned, settings.keep)
    if window is not None and window < kept + 2 * RESERVE:
        texts = "system prompt and" if rendering.note is None else "system prompt, note and"
        needed_for = (
            f"a {texts} chat template of {kept} tokens"
            if pinned == kept
            else f"{kept} kept tokens (--keep)"
        )
        raise WindowTooSmall(
            f"--max-kv-size {window} is too small for {needed_for}: use {kept + 2 * RESERVE} or "
            "more"
        )
    return pinned


def check_pin(
    rendering: Rendering, window: int | None, keep: int, pinned: Sequence[Turn], turn: Turn
) -> None:
    """Raises UsageError if the model cannot see the turn, or if the turns that are already pinned
    and this one would leave no room in the window."""
    own = rendering.tokens_of(turn)
    if own == 0:
        raise UsageError("the chat template rejects this turn: the model cannot see it")
    if window is None:
        return
    room, others = window - keep - 2 * RESERVE, rendering.tokens_of(*pinned)
    if own > room:
        raise UsageError(
            f"too large to pin: the turn has {own:,} tokens, and the window has room to pin "
            f"{max(room, 0):,}"
        )
    if own + others > room:
        raise UsageError(
            f"too large to pin: the turn has {own:,} tokens, and the turns already "
            f"pinned leave room for {max(room - others, 0):,}: unpin them first (/unpin)"
        )


def room_for_note(rendering: Rendering, window: int | None, pinned: Sequence[Turn]) -> int | None:
    """How many tokens a note may add to the system prompt, next to the pinned turns and a message
    with its reply; None: any number."""
    if window is None:
        return None
    others = rendering.tokens_of_system("") + rendering.tokens_of(*pinned)
    return window - others - 2 * RESERVE


def check_note(rendering: Rendering, room: int | None, text: str) -> None:
    """Raises UsageError if the note has more tokens than there is `room` for."""
    tokens = rendering.tokens_of_system(text) - rendering.tokens_of_system("")
    if room is not None and tokens > room:
        raise UsageError(
            f"the note does not fit: it has {tokens:,} tokens, and the window has room for "
            f"{max(room, 0):,}"
        )
