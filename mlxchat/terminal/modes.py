"""How the terminal edits and echoes keys, and its size: the only importer of termios."""

import fcntl
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

Settings = list[Any]

_IFLAG, _LFLAG, _CC = 0, 3, 6


def settings_of(terminal: int) -> Settings | None:
    """Its settings now; None if it is no terminal, or has gone."""
    with suppress(termios.error, OSError):
        return termios.tcgetattr(terminal)
    return None


def apply(terminal: int, settings: Settings) -> None:
    """Change the settings if the terminal is still there; nothing typed already is dropped."""
    # TCSANOW: the other ways may drop it.
    with suppress(termios.error, OSError):
        termios.tcsetattr(terminal, termios.TCSANOW, settings)


@contextmanager
def set_to(terminal: int, settings: Settings) -> Iterator[None]:
    """These settings while the body runs, and then those from before."""
    before = termios.tcgetattr(terminal)
    try:
        termios.tcsetattr(terminal, termios.TCSANOW, settings)
        yield
    finally:
        apply(terminal, before)


def unedited(terminal: int) -> Settings:
    """Each key can be read at once, as echoed and as able to interrupt as before."""
    return _changed(terminal, clear_local=termios.ICANON)


def held(terminal: int) -> Settings:
    """Keys wait unseen to be read; Ctrl-C still interrupts."""
    # Without IEXTEN no key but those of signals is special. NOFLSH, because Ctrl-C ends the reply
    # and not the draft of the next message. ICRNL, so that Enter comes out as a newline for a
    # PlainInput; an Editor takes either.
    return _changed(
        terminal,
        clear_local=termios.ECHO | termios.ICANON | termios.IEXTEN,
        set_local=termios.ISIG | termios.NOFLSH,
        set_input=termios.ICRNL,
    )


def raw(terminal: int) -> Settings:
    """Every key is a byte, Ctrl-C too; what is written still gets its line ends."""
    return _changed(
        terminal,
        clear_local=termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN,
        clear_input=termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON,
    )


def _changed(
    terminal: int,
    *,
    clear_local: int,
    set_local: int = 0,
    clear_input: int = 0,
    set_input: int = 0,
) -> Settings:
    before = termios.tcgetattr(terminal)
    changed = [*before[:_CC], list(before[_CC])]
    changed[_LFLAG] = changed[_LFLAG] & ~clear_local | set_local
    changed[_IFLAG] = changed[_IFLAG] & ~clear_input | set_input
    changed[_CC][termios.VMIN], changed[_CC][termios.VTIME] = 1, 0
    return changed


def unread_bytes(pipe: int) -> int:
    """How much its reader has still to read; 0 if that is unknown."""
    with suppress(OSError):
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0


def copy_size(source: int, target: int, last: bytes) -> bytes:
    """Give `target` the size of `source` unless that is still `last`; returns the size."""
    with suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8))
        if size != last:
            fcntl.ioctl(target, termios.TIOCSWINSZ, size)
        return size
    return last
