"""What an application shows while it works, as callbacks: by default what a library logs."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from mlxchat.progress import Progress

_log = logging.getLogger("mlxchat")


@contextmanager
def _unseen(*_: str) -> Iterator[Progress]:
    yield lambda done, total: None


@dataclass(frozen=True, slots=True)
class Observer:
    """`warn` gets what changes what the output means, `note` what is good to know. `ask` answers
    yes or no before a download; without it there is no question. `spell` writes out an error's
    message, by default with the names that Python has for settings. `waiting` is entered with a
    text while something takes long, `counting` with what is counted and its unit."""

    warn: Callable[[str], None] = _log.warning
    note: Callable[[str], None] = _log.info
    ask: Callable[[str], bool] | None = None
    show_progress: bool = False
    spell: Callable[[object], str] = str
    waiting: Callable[[str], AbstractContextManager[object]] = _unseen
    counting: Callable[[str, str], AbstractContextManager[Progress]] = _unseen
