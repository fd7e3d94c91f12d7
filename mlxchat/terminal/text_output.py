"""Writes text to stdout as it is produced, and handles errors of stdout."""

import io
import os
import sys
from typing import TextIO

from mlxchat.errors import ClosedPipe, OutputError
from mlxchat.terminal import visible
from mlxchat.terminal.leaving import TerminalLine


class Stdout:
    """Writes and flushes piece by piece. On a terminal, control characters are made visible.

    Raises ClosedPipe if the reader has closed it, OutputError if it cannot be written.
    """

    def __init__(self) -> None:
        if sys.stdout is None:
            raise OutputError("standard output is closed")
        self._stream: TextIO = sys.stdout
        self.is_terminal = self._stream.isatty()
        if isinstance(self._stream, io.TextIOWrapper):
            # UTF-8 in any locale, and newlines as the model wrote them.
            self._stream.reconfigure(encoding="utf-8", errors="replace", newline="")
        self._last = "\n"

    def write(self, text: str) -> None:
        if not text:
            return
        if self.is_terminal:
            TerminalLine.writing()
        try:
            self._stream.write(visible(text) if self.is_terminal else text)
            self._stream.flush()
        except OSError as error:
            _abandon_stdout()
            if isinstance(error, BrokenPipeError):
                raise ClosedPipe from error
            raise OutputError(f"cannot write to standard output: {error.strerror}") from error
        except BaseException:
            # The process has to end while its reader is blocked: flushing at exit would block as
            # well.
            _abandon_stdout()
            raise
        self._last = text[-1]
        TerminalLine.is_open = self.is_terminal and self._last != "\n"

    def end_line(self) -> None:
        """Write a newline unless the text ends with one."""
        if TerminalLine.is_open if self.is_terminal else self._last != "\n":
            self.write("\n")


def _abandon_stdout() -> None:
    """Keep the interpreter from flushing at exit what could not be written before."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
