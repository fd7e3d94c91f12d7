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
    yes or no before a download; without it nobody is asked. `waiting` is entered with a text while
    something takes long, `counting` with what is counted, and in which unit."""

    warn: Callable[[str], None] = _log.warning
    note: Callable[[str], None] = _log.info
    ask: Callable[[str], bool] | None = None
    show_progress: bool = False
    waiting: Callable[[str], AbstractContextManager[object]] = _unseen
    counting: Callable[[str, str], AbstractContextManager[Progress]] = _unseen
