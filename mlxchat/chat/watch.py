"""Callbacks of a turn: they count its progress and decide whether to stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from mlxchat.engine.loops import ShouldStop
from mlxchat.progress import Progress


class Watching(TypedDict, total=False):
    """Callbacks for `say`, `retry` and `continue_reply`: `on_encode` counts characters of long
    texts as they are tokenized, `on_prefill` counts tokens, `should_stop` is asked between
    steps."""

    on_encode: Progress | None
    on_prefill: Progress | None
    should_stop: ShouldStop | None


class StoppedEncoding(Exception):
    """Stopped while tokenizing."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The same, as an object."""

    on_encode: Progress | None = None
    on_prefill: Progress | None = None
    should_stop: ShouldStop | None = None

    def count_encoding(self, done: int, total: int) -> None:
        """Raises StoppedEncoding if asked to stop before the end."""
        if self.on_encode is not None:
            self.on_encode(done, total)
        if done < total and self.should_stop is not None and self.should_stop():
            raise StoppedEncoding
