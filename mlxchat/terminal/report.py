"""A line for each of several things that were looked at, which wraps below itself."""

import textwrap

from mlxchat.terminal import visible

_VERDICT_COLUMNS, _TOPIC_COLUMNS = 8, 17
_LEAST_TEXT_COLUMNS = 30


def format_line(verdict: str, topic: str, text: str, advice: str | None, columns: int) -> str:
    """The verdict, the topic, the text, and the advice below it behind an arrow.

    What comes from files or the environment cannot reach the terminal as control characters.
    """
    head = f"{verdict:{_VERDICT_COLUMNS}} {topic:{_TOPIC_COLUMNS}} "
    indent = " " * len(head)
    if columns - len(head) < _LEAST_TEXT_COLUMNS:
        # There is no room beside: the text goes below.
        indent = "  "
        return (
            f"{head.rstrip()}\n"
            + _wrapped(text, indent, indent, columns)
            + _advised(advice, indent, columns)
        )
    return _wrapped(text, head, indent, columns) + _advised(advice, indent, columns)


def _advised(advice: str | None, indent: str, columns: int) -> str:
    return "" if advice is None else _wrapped(advice, f"{indent}→ ", f"{indent}  ", columns)


def _wrapped(text: str, first: str, later: str, columns: int) -> str:
    filled = textwrap.fill(
        " ".join(visible(text).split()),
        # The last column is left free: some terminals wrap when it is written.
        width=max(columns - 1, len(first) + 10),
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{filled}\n"
