"""The window as a bar chart, for `/context`: a row per turn, whose tokens add up to the total."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.text import Text

from mlxchat.chat.eviction import RESERVE
from mlxchat.chat.turn import Quoted, Turn, Usage
from mlxchat.terminal import visible
from mlxchat.units import count

MAX_COLUMNS = 90
GAP = "  "


class Row(NamedTuple):
    label: str
    tokens: int


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
    total = sum(row.tokens for row in rows)
    numbers = [f"{row.tokens:,}" for row in rows]
    number_width = max(map(len, numbers))
    room = max(min(columns, MAX_COLUMNS) - number_width - 2 * len(GAP), 2)
    bar_width = room // 3
    for number, row in zip(numbers, rows, strict=True):
        bar = _bar(row.tokens, total, bar_width)
        # The label is last, so that no character in it can move anything.
        label = _cropped(row.label, room - bar_width)
        yield f"{number:>{number_width}}{GAP}{bar:{bar_width}}{GAP}{label}".rstrip()


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
) -> Iterator[Row]:
    numbers = {id(turn): number for number, turn in enumerate(turns, 1)}
    yield Row("system prompt and template", usage.pinned - usage.note)
    if note is not None:
        yield Row(f"note: {note}", usage.note)
    for turn, tokens in usage.turns:
        pinned = " (pinned)" if turn.pinned else ""
        yield Row(f"{numbers[id(turn)]}{pinned}: {turn.user}", tokens)
    if attached_tokens:
        yield Row("attached to your next message", attached_tokens)
    if usage.window is not None:
        yield Row("free", max(usage.window - usage.tokens - attached_tokens, 0))


def _bar(tokens: int, total: int, width: int) -> str:
    filled = round(width * tokens / total) if total else 0
    return "█" * max(filled, 1 if tokens else 0)


def _cropped(label: str, width: int) -> str:
    """One line of at most `width` cells."""
    text = Text(" ".join(visible(label).split()))
    text.truncate(width, overflow="ellipsis")
    return text.plain
