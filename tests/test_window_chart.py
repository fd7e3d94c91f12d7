"""The chart of `/context`: its numbers add up, and no text makes it wider than the terminal."""

import re

import pytest
from rich.cells import cell_len

from mlxchat.chat.turn import Turn, Usage
from mlxchat.terminal.window_chart import draw_window, summary

TEXTS = [
    "My name is Ada",
    "日本語で答えてください、お願いします。" * 2,
    "👨‍👩‍👧‍👦 and 👍🏽 and ❤️ and 🇩🇪 " * 4,
    "two\nlines\tand a tab \x1b[31m",
    "\u202eright to left\u202c שלום",
    "e\u0301" * 60,
]


def usage(tokens: int = 40, window: int | None = 400) -> tuple[Usage, list[Turn]]:
    turns = [Turn(text) for text in TEXTS]
    return Usage(30, tuple((turn, tokens) for turn in turns), window), turns


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    """Labels were measured in characters, of which Chinese ones take two columns."""
    used, turns = usage()
    lines = list(draw_window(used, turns, 50, columns))
    assert len(lines) == len(TEXTS) + 3
    assert max(map(cell_len, lines)) <= columns
    # Bars begin below one another.
    assert len({line.index("█") for line in lines}) == 1
    assert not any(ord(char) < 0x20 for line in lines for char in line)


@pytest.mark.parametrize("window", [None, 400])
def test_the_numbers_add_up_to_the_total(window: int | None) -> None:
    used, turns = usage(window=window)
    lines = list(draw_window(used, turns, 50, 80))
    numbers = [int(match[0]) for line in lines if (match := re.match(r" *\d+", line))]
    assert sum(numbers) == (window or used.tokens + 50)
    limit = "" if window is None else " of 400"
    assert summary(used, 50, 2).startswith(f"320{limit} tokens · 2 turns forgotten")
