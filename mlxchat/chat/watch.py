"""Who watches a turn: what counts its progress, and whether it should stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from mlxchat.engine.loops import ShouldStop
from mlxchat.progress import Progress


class Watching(TypedDict, total=False):
    """How `say`, `retry` and `continue_reply` can be watched: `on_encode` counts characters of long
    texts that are turned into tokens, `on_prefill` tokens; `should_stop` is asked between steps."""

    on_encode: Progress | None
    on_prefill: Progress | None
    should_stop: ShouldStop | None


class StoppedEncoding(Exception):
    """It was asked to stop while text was turned into tokens."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The same, as an object."""

    on_encode: Progress | None = None
    on_prefill: Progress | None = None
    should_stop: ShouldStop | None = None

    def count_encoding(self, done: int, total: int) -> None:
        """Raises StoppedEncoding if it should stop before the end."""
        if self.on_encode is not None:
            self.on_encode(done, total)
        if done < total and self.should_stop is not None and self.should_stop():
            raise StoppedEncoding
