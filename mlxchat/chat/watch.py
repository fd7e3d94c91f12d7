"""What a caller of a turn can watch, and how it ends the turn early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.prefill import ShouldStop
from mlxchat.units import Progress


class Watching(TypedDict, total=False):
    """Keyword arguments of `say`, `retry` and `continue_reply`.

    `on_encode` counts characters while a long text is tokenized, `on_prefill` the tokens that are
    read, and `on_note` those written of a note.
    `should_stop` is called between steps. `stop_loops` ends a reply that repeats itself, with the
    finish reason "loop". `constraint` and `prefill`, its beginning, are those of a new answer.
    """

    on_encode: Progress | None
    on_prefill: Progress | None
    on_note: Progress | None
    should_stop: ShouldStop | None
    stop_loops: bool
    constraint: Constraint | None
    prefill: str | None


class StoppedEncoding(Exception):
    """The turn was stopped before its prompt was ready."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The same, as an object."""

    on_encode: Progress | None = None
    on_prefill: Progress | None = None
    on_note: Progress | None = None
    should_stop: ShouldStop | None = None
    stop_loops: bool = False
    constraint: Constraint | None = None
    prefill: str | None = None

    def count_encoding(self, done: int, total: int) -> None:
        """Raises StoppedEncoding if the turn should stop before the end."""
        if self.on_encode is not None:
            self.on_encode(done, total)
        if done < total and self.is_stopped():
            raise StoppedEncoding

    def count_note(self, done: int, total: int) -> None:
        if self.on_note is not None:
            self.on_note(done, total)

    def is_stopped(self) -> bool:
        return self.should_stop is not None and self.should_stop()
