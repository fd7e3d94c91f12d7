"""Destinations for the text of a run."""

from typing import Protocol

from mlxchat.store.output_file import OutputFile


class Sink(Protocol):
    def write(self, text: str) -> None: ...
    def end(self) -> None: ...


class FileSink:
    """A file as a `Sink`."""

    def __init__(self, file: OutputFile) -> None:
        self.file = file

    def write(self, text: str) -> None:
        self.file.write(text)

    def end(self) -> None:
        self.file.end()


class NoSink:
    """No destination: the caller iterates over the run and gets the text."""

    def write(self, text: str) -> None: ...
    def end(self) -> None: ...
