"""Lines from a terminal with its own line editing, and which of them came as one paste.

The terminal decides about echo, and `plain_input` what a message is.
"""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from mlxchat.terminal.modes import set_to, unedited

# Too short for typing another line; a paste has no pauses.
PASTE_PAUSE_S = 0.05

_MAX_BYTES = 1 << 16
# Arrives as a key if the terminal was not editing lines when it was pressed.
_END = b"\x04"


class TypedLines:
    """Reads stdin line by line. `was_awaited`: the end of the last line had not been typed yet when
    the line was requested."""

    def __init__(self) -> None:
        self._held = b""
        self.was_awaited = False

    @property
    def has_more(self) -> bool:
        """Whether something can be read immediately."""
        return bool(self._held) or _comes_within(0)

    def read(self) -> str:
        """Return the next line without its newline. Raises EOFError at the end of input."""
        self.was_awaited = False
        with self._nothing_held_when_interrupted():
            while not (b"\n" in self._held or self._held.startswith(_END)):
                self.was_awaited = not _comes_within(0)
                if not self._take():
                    break
        if not self._held or self._held.startswith(_END):
            self._held = self._held.removeprefix(_END)
            raise EOFError
        line, _, self._held = self._held.partition(b"\n")
        return line.decode("utf-8", "replace")

    def is_pasted_on(self) -> bool:
        """Whether more follows the last line without a pause: all of it has arrived, except perhaps
        the end of its last line."""
        with self._nothing_held_when_interrupted(), _unfinished_lines_readable():
            while _comes_within(PASTE_PAUSE_S) and self._take():
                pass
        return bool(self._held)

    def _take(self) -> bytes:
        # A closed terminal counts as end of input.
        with suppress(OSError):
            taken = os.read(_stdin(), _MAX_BYTES)
            self._held += taken
            return taken
        return b""

    @contextmanager
    def _nothing_held_when_interrupted(self) -> Iterator[None]:
        """Ctrl-C clears the typed line, as the terminal does with its own part of it."""
        try:
            yield
        except KeyboardInterrupt:
            self._held = b""
            raise


def _stdin() -> int:
    assert sys.stdin is not None
    return sys.stdin.fileno()


def _comes_within(seconds: float) -> bool:
    return bool(select.select([_stdin()], [], [], seconds)[0])


def _unfinished_lines_readable() -> AbstractContextManager[None]:
    """Let unfinished lines be read; without a terminal they always can."""
    terminal = _stdin()
    return set_to(terminal, unedited(terminal)) if os.isatty(terminal) else nullcontext()
