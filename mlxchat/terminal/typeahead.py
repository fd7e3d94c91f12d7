"""Keys pressed while nobody reads: kept, unseen, for the next prompt, which reads them itself."""

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_IFLAG, _LFLAG, _CC = 0, 3, 6


@contextmanager
def held_typeahead() -> Iterator[None]:
    """Leave what is typed in the kernel's buffer without an echo; Ctrl-C still interrupts.

    Does nothing if stdin is no terminal.
    """
    terminal = _terminal()
    if terminal is None:
        yield
        return
    before = termios.tcgetattr(terminal)
    try:
        # TCSANOW throughout: the other ways may drop what was typed already.
        termios.tcsetattr(terminal, termios.TCSANOW, _holding(before))
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)


def _terminal() -> int | None:
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        return None
    return sys.stdin.fileno()


def _holding(before: list) -> list:
    holding = [*before[:_CC], list(before[_CC])]
    # Without IEXTEN no key but those of signals is special.
    holding[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    # NOFLSH, because Ctrl-C ends the reply and not the draft of the next message.
    holding[_LFLAG] |= termios.ISIG | termios.NOFLSH
    # Enter must come out as a newline for a PlainInput; an Editor takes either.
    holding[_IFLAG] |= termios.ICRNL
    holding[_CC][termios.VMIN] = 1
    holding[_CC][termios.VTIME] = 0
    return holding
