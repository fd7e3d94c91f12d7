"""What a chat shows between replies: dim notices, rules, and the window as a chart. And the
clipboard, by way of the same terminal."""

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from mlxchat.chat.rendering import RESERVE
from mlxchat.chat.state import Turn, Usage
from mlxchat.terminal import is_dumb, visible
from mlxchat.units import count

# The columns of a rule without its text.
RULE_CELLS = 2
MAX_CHART_COLUMNS = 90
GAP = "  "


class Screen:
    """Lines between replies. All text is untrusted."""

    def __init__(self, file: TextIO | None = None) -> None:
        """Writes to the file, by default stdout."""
        self._console = Console(file=file, highlight=False, markup=False, emoji=False)

    def say(self, text: str) -> None:
        self._console.print(Text(visible(text), style="dim"))

    def complain(self, error: object) -> None:
        self._console.print(Text(visible(str(error)), style="red"))

    def rule(self, text: str) -> None:
        """A line across the screen with text in it; text alone if there is no room for a line."""
        if is_dumb():
            self._console.print(f"-- {visible(text)} --")
        elif cell_len(visible(text)) + RULE_CELLS > self._console.width:
            self.say(text)
        else:
            self._console.print(Rule(Text(visible(text), style="dim"), style="dim", align="left"))

    def draw(self, lines: Iterable[str]) -> None:
        """Print lines without wrapping."""
        for line in lines:
            self._console.print(Text(line, style="dim"), no_wrap=True, overflow="crop")

    @property
    def columns(self) -> int:
        return self._console.width


def draw_window(
    usage: Usage,
    turns: Sequence[Turn],
    attached_tokens: int,
    columns: int,
    note: str | None = None,
) -> Iterator[str]:
    """The window as a bar chart with a row per turn, whose tokens add up to the total.

    Lines are no wider than `columns`; `turns` are all turns of the conversation, `note` that on
    forgotten ones. `attached_tokens` are those of files and quotes attached to the next message.
    """
    rows = list(_rows(usage, turns, attached_tokens, note))
    total = sum(tokens for _, tokens in rows)
    number_width = max(len(f"{tokens:,}") for _, tokens in rows)
    room = max(min(columns, MAX_CHART_COLUMNS) - number_width - 2 * len(GAP), 2)
    bar_width = room // 3
    for label, tokens in rows:
        filled = round(bar_width * tokens / total) if total else 0
        bar = "█" * max(filled, 1 if tokens else 0)
        text = Text(" ".join(visible(label).split()))
        text.truncate(room - bar_width, overflow="ellipsis")
        # The label is last, so that no character in it can move anything.
        yield f"{tokens:>{number_width},}{GAP}{bar:{bar_width}}{GAP}{text.plain}".rstrip()


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


def summary(
    usage: Usage, attached_tokens: int, forgotten: int, recalled: Sequence[int] = ()
) -> str:
    """The total, which turns the last message recalled, and whether the next one will push anything
    out."""
    used, window = usage.tokens + attached_tokens, usage.window
    limit = "" if window is None else f" of {window:,}"
    parts = [f"{used:,}{limit} tokens", f"{count(forgotten, 'turn')} forgotten"]
    if recalled:
        parts.append(f"recalled {' and '.join(f'turn {number}' for number in recalled)}")
    if window is not None and used + RESERVE > window and usage.turns:
        parts.append("your next message will push out the oldest turns")
    return " · ".join(parts)


def copy_to_clipboard(text: str) -> str:
    """Copy with macOS's `pbcopy`, else the terminal's OSC 52; return a short report."""
    copied = text.encode("utf-8", "replace")
    size = f"{len(text):,} characters"
    # Over ssh, pbcopy would fill the clipboard of the wrong machine.
    if "SSH_CONNECTION" not in os.environ and shutil.which("pbcopy"):
        # Without a locale pbcopy assumes Mac Roman.
        locale = os.environ | {"LC_CTYPE": "UTF-8"}
        if subprocess.run(["pbcopy"], input=copied, env=locale, check=False).returncode == 0:
            return f"copied {size}"
    if is_dumb() or not sys.stdout.isatty():
        return "no clipboard here: /export writes a file"
    sys.stdout.write(f"\x1b]52;c;{base64.b64encode(copied).decode()}\x07")
    sys.stdout.flush()
    # No terminal confirms it.
    return f"sent {size} to the terminal (OSC 52), which may not support it"
