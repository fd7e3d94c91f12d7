"""A yes-or-no question, where there is somebody to ask."""

import sys
from collections.abc import Callable

from mlxchat.terminal import visible


def terminal_question() -> Callable[[str], bool] | None:
    """Return a function that asks on the terminal, or None where stdin or stderr is none."""
    if sys.stdin is None or sys.stderr is None:
        return None
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return _ask


def _ask(question: str) -> bool:
    sys.stderr.write(f"{visible(question)} [Y/n] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    # An end of input is no consent.
    return answer.strip().lower() in ("y", "yes") or answer == "\n"
