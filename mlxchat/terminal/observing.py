"""Shows on the terminal what `app` reports while it opens a model, and asks its questions."""

import sys
from collections.abc import Callable

from mlxchat.app.observer import Observer
from mlxchat.terminal import visible
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.progress import progress, waiting


def observer_of(messages: Messages) -> Observer:
    """Shows on the terminal what `app` reports."""
    return Observer(
        warn=messages.warn,
        note=messages.note,
        ask=terminal_question(),
        show_progress=not messages.quiet,
        waiting=lambda text: waiting(text, messages.quiet),
        counting=lambda what, unit: progress(what, unit, messages.quiet),
    )


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
