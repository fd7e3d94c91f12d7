"""What an import made, and what it left out."""

from __future__ import annotations

from collections import Counter

from mlxchat.sessions.foreign import listed
from mlxchat.sessions.imports import Imported
from mlxchat.terminal.messages import Messages
from mlxchat.units import count

MOST_LINES = 20


class ImportReport:
    """Lists on stderr what was left out of each session, at most MOST_LINES of them."""

    def __init__(self) -> None:
        self._messages = Messages()
        self._lines: list[str] = []
        self._incomplete = 0

    def left_out(self, name: str, what: str) -> None:
        """To be shown at the end: a terminal shows the progress until then."""
        self._incomplete += 1
        if self._incomplete <= MOST_LINES:
            self._lines.append(f"left out of {name!r}: {what}")

    def ended(self, imported: Imported) -> str:
        """A line for stdout; the rest goes to stderr."""
        for line in self._lines:
            self._messages.warn(line)
        self._warn_of_more(imported.left_out)
        if imported.empty:
            empty = count(imported.empty, "conversation")
            self._messages.warn(f"left out {empty} without messages")
        if imported.present:
            present = count(imported.present, "conversation")
            self._messages.warn(f"{present} had been imported before")
        return _summary(imported)

    def _warn_of_more(self, left_out: Counter[str]) -> None:
        if self._incomplete <= MOST_LINES:
            return
        more = count(self._incomplete - MOST_LINES, "other session")
        self._messages.warn(f"and of {more}; in all: {listed(left_out)}")


def _summary(imported: Imported) -> str:
    turns = count(imported.turns, "turn")
    if len(imported.names) == 1:
        return f"imported {turns} as {imported.names[0]}\n"
    if not imported.names:
        return "imported nothing\n"
    return f"imported {count(len(imported.names), 'session')} with {turns}\n"
