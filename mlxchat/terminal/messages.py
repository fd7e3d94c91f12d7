"""Messages on stderr: errors, warnings, and notes for terminals."""

import os
import re
import sys
import textwrap
from contextlib import suppress

from mlxchat.terminal import visible
from mlxchat.terminal.leaving import TerminalLine

# A command in backquotes, the help that a usage error refers to, or a figure before a dot.
_WHOLE = re.compile(r"`[^`]*`|\(see mlxchat [^()]*\)|[^·\s][^·]* ·")
# The terminal may have echoed a key on the line.
_ECHO = len("^C")
_GLUE = "\0"


class Messages:
    """Reports to the user; `quiet` shows only errors."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def warn(self, text: str) -> None:
        """Report something that changes the meaning of the output; scripts see it too."""
        if not self.quiet:
            _write(f"mlxchat: {text}")

    def note(self, text: str) -> None:
        """Report something worth knowing; only a terminal shows it."""
        if not self.quiet and _is_terminal():
            _write(f"mlxchat: {text}")

    def stats(self, text: str, wanted: bool | None) -> None:
        """Show the closing figures if requested; by default on a terminal unless quiet."""
        if wanted or (wanted is None and not self.quiet and _is_terminal()):
            _write(text)

    def status(self, text: str) -> None:
        """Report progress, in answer to a signal."""
        _write(text)


def show_error(error: object) -> None:
    """Show an error on a separate line."""
    _write(f"mlxchat: error: {error}")


def wrap(text: str, columns: int) -> str:
    """The text in lines of at most `columns`. Words, figures and commands, which can then be
    copied, stay whole; longer ones are left for the terminal to break."""
    glued = _WHOLE.sub(lambda found: found[0].replace(" ", _GLUE), text)
    wrapped = textwrap.fill(glued, columns, break_long_words=False, break_on_hyphens=False)
    return wrapped.replace(_GLUE, " ")


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _columns() -> int:
    """The width of the terminal; 0 if unknown, or if stderr is not a terminal."""
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns
    return 0


def _write(text: str) -> None:
    if sys.stderr is None:
        return
    line = " ".join(visible(text).split("\n"))
    columns = _columns()
    shown = wrap(line, max(columns - _ECHO, 1)) if columns else line
    try:
        sys.stderr.write(f"{TerminalLine.end()}{shown}\n")
        sys.stderr.flush()
    except OSError:
        # Without stderr there is nowhere to report to.
        return
