"""Keeps keys that are pressed while nothing reads them, without echo, for the next prompt."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from mlxchat.terminal.continued import when_continued
from mlxchat.terminal.modes import apply, held, is_in_foreground, set_to, settings_of

# Gives back the terminal's original settings, with line editing and echo, while the body runs.
Released = Callable[[], AbstractContextManager[None]]


@contextmanager
def held_typeahead() -> Iterator[Released]:
    """Leave typed keys, and reports of the terminal itself, in the kernel's buffer without an echo;
    Ctrl-C still interrupts. Yields a context that lends the terminal to other programs.

    Does nothing if stdin is not a terminal.
    """
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        yield nullcontext
        return
    terminal = sys.stdin.fileno()
    found = settings_of(terminal)
    assert found is not None
    holding, is_lent = held(terminal), False

    def hold_again() -> None:
        if not is_lent and is_in_foreground(terminal):
            apply(terminal, holding)

    @contextmanager
    def lend() -> Iterator[None]:
        nonlocal is_lent
        is_lent = True
        try:
            with set_to(terminal, found):
                yield
        finally:
            is_lent = False

    with set_to(terminal, holding), when_continued(hold_again):
        yield lend
