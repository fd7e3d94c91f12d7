"""Yes-or-no questions on a terminal."""

import sys
from collections.abc import Callable

from mlxchat.terminal import visible


def terminal_question() -> Callable[[str], bool] | None:
    """Return a function that asks on the terminal; None if stdin or stderr is not a terminal."""
    if sys.stdin is None or sys.stderr is None:
        return None
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return _ask


def _ask(question: str) -> bool:
    sys.stderr.write(f"{visible(question)} [Y/n] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    # End of input does not count as consent.
    return answer.strip().lower() in ("y", "yes") or answer == "\n"
