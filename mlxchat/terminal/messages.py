"""Lines for people on stderr: errors, warnings, and notes that only a terminal gets to see.

What they name is spelled as the command line knows it.
"""

import sys

from mlxchat.terminal import visible
from mlxchat.terminal.spelling import as_flags


class Messages:
    """Where a command tells what happened; `quiet` leaves only errors."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def warn(self, text: str) -> None:
        """Say something that changes what the output means: shown in scripts as well."""
        if not self.quiet:
            _write(f"mlxchat: {as_flags(text)}")

    def note(self, text: str) -> None:
        """Say something good to know: shown on a terminal only."""
        if not self.quiet and _is_terminal():
            _write(f"mlxchat: {as_flags(text)}")

    def stats(self, text: str, wanted: bool | None) -> None:
        """Show the closing figures: where asked for, else on a terminal unless quiet."""
        if wanted or (wanted is None and not self.quiet and _is_terminal()):
            _write(text)

    def status(self, text: str) -> None:
        """Say how it goes, because a signal asked for it."""
        _write(text)


def show_error(error: object) -> None:
    """Show an error, or a text, on a line of its own."""
    _write(f"mlxchat: error: {as_flags(error)}")


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _write(text: str) -> None:
    if sys.stderr is None:
        return
    one_line = " ".join(visible(text).split("\n"))
    try:
        sys.stderr.write(one_line + "\n")
        sys.stderr.flush()
    except OSError:
        # With stderr gone there is nobody left to tell.
        return
