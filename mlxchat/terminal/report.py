"""A line per finding, wrapped with a hanging indent."""

import textwrap

from mlxchat.terminal import visible

_VERDICT_COLUMNS, _TOPIC_COLUMNS = 8, 17
_MIN_TEXT_COLUMNS = 30


def format_line(verdict: str, topic: str, text: str, advice: str | None, columns: int) -> str:
    """The verdict, the topic, the text, and below it the advice after an arrow.

    Control characters from files or the environment are made visible.
    """
    head = f"{verdict:{_VERDICT_COLUMNS}} {topic:{_TOPIC_COLUMNS}} "
    indent = " " * len(head)
    if columns - len(head) < _MIN_TEXT_COLUMNS:
        # Too narrow for two columns: the text goes below.
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
        # Leave the last column free: some terminals wrap when it is written.
        width=max(columns - 1, len(first) + 10),
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{filled}\n"
