"""Destinations for the text of a run."""

from typing import Protocol


class Sink(Protocol):
    def write(self, text: str) -> None: ...
    def end(self) -> None: ...


class NoSink:
    """No destination: the caller iterates over the run and gets the text."""

    def write(self, text: str) -> None: ...
    def end(self) -> None: ...
