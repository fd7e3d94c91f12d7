"""Keys pressed while nobody reads: kept, unseen, for the next prompt, which reads them itself."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from mlxchat.terminal.modes import held, set_to, settings_of

# The terminal as it was found, while the body runs: it edits lines and echoes them.
Released = Callable[[], AbstractContextManager[None]]


@contextmanager
def held_typeahead() -> Iterator[Released]:
    """Leave what is typed, or reported by the terminal itself, in the kernel's buffer without an
    echo; Ctrl-C still interrupts. Yields what gives the terminal to others for a while.

    Does nothing if stdin is no terminal.
    """
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        yield nullcontext
        return
    terminal = sys.stdin.fileno()
    found = settings_of(terminal)
    assert found is not None
    with set_to(terminal, held(terminal)):
        yield lambda: set_to(terminal, found)
