"""Keys pressed while nobody reads: kept, unseen, for the next prompt, which reads them itself."""

import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

_IFLAG, _LFLAG, _CC = 0, 3, 6


# The terminal as it was found, while the body runs: it edits lines and echoes them.
Released = Callable[[], AbstractContextManager[None]]


@contextmanager
def held_typeahead() -> Iterator[Released]:
    """Leave what is typed, or reported by the terminal itself, in the kernel's buffer without an
    echo; Ctrl-C still interrupts. Yields what gives the terminal to others for a while.

    Does nothing if stdin is no terminal.
    """
    terminal = _terminal()
    if terminal is None:
        yield nullcontext
        return
    found = termios.tcgetattr(terminal)
    with _set_to(terminal, _holding(found)):
        yield lambda: _set_to(terminal, found)


@contextmanager
def _set_to(terminal: int, settings: list[Any]) -> Iterator[None]:
    before = termios.tcgetattr(terminal)
    try:
        # TCSANOW throughout: the other ways may drop what was typed already.
        termios.tcsetattr(terminal, termios.TCSANOW, settings)
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)


def _terminal() -> int | None:
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        return None
    return sys.stdin.fileno()


def _holding(found: list[Any]) -> list[Any]:
    holding = [*found[:_CC], list(found[_CC])]
    # Without IEXTEN no key but those of signals is special.
    holding[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    # NOFLSH, because Ctrl-C ends the reply and not the draft of the next message.
    holding[_LFLAG] |= termios.ISIG | termios.NOFLSH
    # Enter must come out as a newline for a PlainInput; an Editor takes either.
    holding[_IFLAG] |= termios.ICRNL
    holding[_CC][termios.VMIN] = 1
    holding[_CC][termios.VTIME] = 0
    return holding
