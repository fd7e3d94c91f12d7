"""The window as a bar chart, for `/context`: a row per turn, whose tokens add up to the total."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from mlxchat.chat.room import RESERVE
from mlxchat.chat.turn import Quoted, Turn, Usage
from mlxchat.terminal import visible
from mlxchat.units import count

MAX_COLUMNS = 90
GAP = "  "


def draw_window(
    usage: Usage,
    turns: Sequence[Turn],
    attached_tokens: int,
    columns: int,
    note: str | None = None,
) -> Iterator[str]:
    """Lines no wider than `columns`; `turns` are all turns of the conversation, `note` that on
    forgotten ones. `attached_tokens` are those of files and quotes attached to the next message."""
    rows = list(_rows(usage, turns, attached_tokens, note))
    total = sum(tokens for _, tokens in rows)
    number_width = max(len(f"{tokens:,}") for _, tokens in rows)
    room = max(min(columns, MAX_COLUMNS) - number_width - 2 * len(GAP), 2)
    bar_width = room // 3
    for label, tokens in rows:
        filled = round(bar_width * tokens / total) if total else 0
        bar = "█" * max(filled, 1 if tokens else 0)
        text = Text(" ".join(visible(label).split()))
        text.truncate(room - bar_width, overflow="ellipsis")
        # The label is last, so that no character in it can move anything.
        yield f"{tokens:>{number_width},}{GAP}{bar:{bar_width}}{GAP}{text.plain}".rstrip()


def summary(
    usage: Usage, attached_tokens: int, forgotten: int, recalled: Sequence[Quoted] = ()
) -> str:
    """The total, which turns the last message recalled, and whether the next one will push anything
    out."""
    used = usage.tokens + attached_tokens
    parts = [_out_of(used, usage.window), f"{count(forgotten, 'turn')} forgotten"]
    if recalled:
        parts.append(f"recalled {' and '.join(map(str, recalled))}")
    if usage.window is not None and used + RESERVE > usage.window and usage.turns:
        parts.append("your next message will push out the oldest turns")
    return " · ".join(parts)


def _out_of(used: int, window: int | None) -> str:
    if window is None:
        return f"{used:,} tokens"
    if used > window:
        return f"{used:,} tokens for a window of {window:,}"
    return f"{used:,} of {window:,} tokens"


def _rows(
    usage: Usage, turns: Sequence[Turn], attached_tokens: int, note: str | None
) -> Iterator[tuple[str, int]]:
    """Labels, and their numbers of tokens."""
    numbers = {id(turn): number for number, turn in enumerate(turns, 1)}
    yield "system prompt and template", usage.pinned - usage.note
    if note is not None:
        yield f"note: {note}", usage.note
    for turn, tokens in usage.turns:
        pinned = " (pinned)" if turn.pinned else ""
        yield f"{numbers[id(turn)]}{pinned}: {turn.user}", tokens
    if attached_tokens:
        yield "attached to your next message", attached_tokens
    if usage.window is not None:
        yield "free", max(usage.window - usage.tokens - attached_tokens, 0)
