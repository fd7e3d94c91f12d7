"""Where an application's messages and progress go; by default, messages are logged."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from mlxchat.units import Progress

_log = logging.getLogger("mlxchat")


@contextmanager
def _unseen(*_: str) -> Iterator[Progress]:
    yield lambda done, total: None


@dataclass(frozen=True, slots=True)
class Observer:
    """`warn` gets messages that change the meaning of the output, `note` those worth knowing. `ask`
    answers yes or no before a download; without it there is no question. `waiting` is
    a context with a text for long operations, `counting` one with a description and a unit."""

    warn: Callable[[str], None] = _log.warning
    note: Callable[[str], None] = _log.info
    ask: Callable[[str], bool] | None = None
    show_progress: bool = False
    waiting: Callable[[str], AbstractContextManager[object]] = _unseen
    counting: Callable[[str, str], AbstractContextManager[Progress]] = _unseen
