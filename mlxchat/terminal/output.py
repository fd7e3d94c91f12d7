"""What goes to stdout and stderr: text as it is produced, and messages. Both share the terminal's
lines with what is drawn there meanwhile."""

import io
import os
import re
import stat
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, TextIO
from unicodedata import east_asian_width

from mlxchat.errors import ClosedPipe, OutputError
from mlxchat.terminal import visible

# A command, the help that a usage error refers to, or where a message begins.
_WHOLE = r"`[^`]*`|mlxchat --session .*|\(see mlxchat [^()]*\)|^> (?:… )?"
# Leaves room for the "^C^C" that the terminal echoes when Ctrl-C is pressed twice.
MARGIN = len("^C^C") + 1
# A space within what stays whole, the second column of a wide character, and one that stays whole.
_GLUE, _WIDE, _HELD = "\0\1\2"
_KEPT = str.maketrans(f" {_WIDE}", _GLUE + _HELD)
# Lines also break between wide letters, but not before the stop or quote after one.
_BREAKS = re.compile(rf"([\t ]+|\w{_WIDE}(?:[^\w\s`(「『（【]{_WIDE}?)*)")


class TerminalLine:
    """The line of the terminal that text is written to; the process has one terminal. The cursor is
    within it if `is_open`. `drawn` are functions that remove what is drawn meanwhile, from any
    thread. `moves` says how often others have written below a reply, which then has to leave its
    rows in place; before it draws, `look` finds out."""

    is_open = False
    drawn: ClassVar[list[Callable[[], object]]] = []
    moves = 0
    look: "staticmethod[[], object]" = staticmethod(lambda: None)

    @classmethod
    def clear(cls) -> bool:
        """Something else is about to be written. Whether anything was drawn."""
        return True in [remove() for remove in reversed(cls.drawn)]

    @classmethod
    def end(cls) -> str:
        """What ends the line, before a message on stderr."""
        is_needed = cls.is_open and sys.stderr.isatty()
        cls.is_open = cls.is_open and not is_needed
        return "\n" if is_needed else ""

    @classmethod
    def announce(cls, text: str) -> None:
        """Write a line on stderr, if that is a terminal, below the line of the cursor, which has at
        least the ^C that the terminal echoed."""
        if _is_terminal():
            # What is drawn covers the ^C.
            cls.is_open = not cls.clear()
            cls.moves += 1
            show_line(text)


class Stdout:
    """Writes and flushes piece by piece. On a terminal, control characters are made visible. It
    `is_seen`, as far as it is known: progress would run into it.

    Raises ClosedPipe if the reader has closed it, OutputError if it cannot be written.
    """

    def __init__(self) -> None:
        if sys.stdout is None:
            raise OutputError("standard output is closed")
        self._stream: TextIO = sys.stdout
        self.is_terminal = self.is_seen = self._stream.isatty()
        with suppress(OSError):
            # The reader of a pipe may write to the same terminal.
            self.is_seen = self.is_seen or stat.S_ISFIFO(os.fstat(self._stream.fileno()).st_mode)
        if isinstance(self._stream, io.TextIOWrapper):
            # UTF-8 in any locale, and newlines as the model wrote them.
            self._stream.reconfigure(encoding="utf-8", errors="replace", newline="")
        self._last = "\n"

    def write(self, text: str) -> None:
        if not text:
            return
        if self.is_seen:
            TerminalLine.clear()
        TerminalLine.is_open = TerminalLine.is_open or self.is_terminal
        try:
            self._stream.write(visible(text) if self.is_terminal else text)
            self._stream.flush()
        except OSError as error:
            self._abandon()
            if isinstance(error, BrokenPipeError):
                raise ClosedPipe from error
            raise OutputError(f"cannot write to standard output: {error.strerror}") from error
        except BaseException:
            # The process has to end while its reader is blocked.
            self._abandon()
            raise
        self._last = text[-1]
        TerminalLine.is_open = self.is_terminal and self._last != "\n"

    def end_line(self) -> None:
        """Write a newline unless the text ends with one."""
        if TerminalLine.is_open if self.is_terminal else self._last != "\n":
            self.write("\n")

    def _abandon(self) -> None:
        """Keep the interpreter from flushing at exit what could not be written before."""
        with Path(os.devnull).open("wb") as null:
            os.dup2(null.fileno(), self._stream.fileno())


class Messages:
    """Reports on stderr; `quiet` shows only errors."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def warn(self, text: str) -> None:
        """Report something that changes the meaning of the output; scripts see it too."""
        if not self.quiet:
            show_line(f"mlxchat: {text}")

    def note(self, text: str) -> None:
        """Report something worth knowing; only a terminal shows it."""
        if not self.quiet and _is_terminal():
            show_line(f"mlxchat: {text}")

    def stats(self, text: str, wanted: bool | None) -> None:
        """Show the closing figures if requested; by default on a terminal unless quiet."""
        if wanted or (wanted is None and not self.quiet and _is_terminal()):
            show_line(text)


def show_error(error: object) -> None:
    """Show an error on a separate line."""
    show_line(f"mlxchat: error: {error}")


def show_line(text: str) -> None:
    """Write the text, which becomes one line, on stderr. A terminal gets it wrapped."""
    if sys.stderr is None:
        return
    line = " ".join(visible(text).split("\n"))
    # Without stderr there is nowhere to report to.
    with suppress(OSError):
        if _is_terminal():
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            line = wrap(line, max(columns - MARGIN, 1))
    with suppress(OSError):
        # In one write: another process may write to the same terminal.
        print(f"{TerminalLine.end()}{line}\n", end="", file=sys.stderr, flush=True)


def wrap(text: str, columns: int, indent: int = 0) -> str:
    """The text in lines of at most `columns`. Words, figures and commands, which can then be
    copied, stay whole; longer words and commands are left for the terminal to break."""
    figure = rf"(?:^|(?<=· ))[^·]{{1,{max(columns - 2, 1)}}}(?: ·|$)| ·"
    spaced = "".join(char + _WIDE * (east_asian_width(char) in "WF") for char in text)
    wrapper = textwrap.TextWrapper(columns, subsequent_indent=" " * indent)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    wrapper.wordsep_simple_re = _BREAKS
    whole = re.sub(f"{_WHOLE}|{figure}", lambda found: found[0].translate(_KEPT), spaced)
    return wrapper.fill(whole).translate({ord(_GLUE): " ", ord(_WIDE): None, ord(_HELD): None})


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
