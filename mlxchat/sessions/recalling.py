"""Finds turns of earlier sessions that a message needs, by the words they share.

Abstains as a chat's own recall does. Bounded however many sessions there are: of a word that very
many turns contain, only the latest ones are looked at.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from mlxchat.chat.turn import Quoted
from mlxchat.recall.choice import by_share, chosen, closest
from mlxchat.recall.index import Index, WithWord
from mlxchat.recall.said import Said, is_typed, sentences
from mlxchat.recall.words import informative
from mlxchat.sessions.database import Database, session_errors
from mlxchat.sessions.records import number_of, session_named, session_with, turn_with

# Turns with a word that are looked at, the latest; and those that are read, the best.
MOST_WITH_WORD = 1_000
MOST_READ = 40
# Among fewer turns, a word in a few of them would count as frequent.
MIN_TURNS = 100
# Of a longer text, the rest is not searched for what it states.
MOST_CHARS = 20_000


def earlier_turns(message: str, at_most: int, but: str | None) -> list[Quoted]:
    """At most that many turns, in the order in which they were said; `but` is the name of a session
    to leave out. Raises SessionError."""
    with Database() as database, session_errors("search the sessions"):
        if not database.exists:
            return []
        return database.read(lambda connection: _found(connection, message, at_most, but))


def _found(
    connection: sqlite3.Connection, message: str, at_most: int, but: str | None
) -> list[Quoted]:
    turns = _Turns(connection, but)
    candidates: dict[int, Quoted] = {}
    for fit in by_share(turns, message):
        if len(candidates) == MOST_READ:
            break
        if quoted := _quoted(connection, fit.number, message):
            candidates[fit.number] = quoted
    stated = _Stated(turns, candidates)
    # What is asked, or answered by a model, is no reason to quote.
    closeness = dict[int, float]()
    for close in closest(stated, message):
        closeness.setdefault(stated.turn_of[close.number], close.closeness)
    said_at = {id_: candidates[id_].turn.time for id_ in closeness}
    numbers = chosen(closeness, said_at.__getitem__, at_most)
    return sorted((candidates[id_] for id_ in numbers), key=lambda each: each.turn.time)


def _quoted(connection: sqlite3.Connection, id_: int, message: str) -> Quoted | None:
    """A turn that states something that the message does not, unless it was taken back."""
    found = turn_with(connection, id_)
    if found is None:
        return None
    session, serial, turn = found
    record = session_with(connection, session)
    if record is None or record.damaged:
        return None
    number = number_of(connection, session, serial)
    own = frozenset(informative(Said.of(turn.user[:MOST_CHARS]).stated))
    if own <= frozenset(informative(message)):
        return None
    return Quoted(turn, number, record.name)


class _Turns:
    """All turns but those of one session, as texts to be searched by word."""

    def __init__(self, connection: sqlite3.Connection, but: str | None) -> None:
        self._connection = connection
        self._known: dict[str, WithWord] = {}
        (last,) = connection.execute("SELECT MAX(id) FROM turns").fetchone()
        self._last = int(last or 0)
        record = None if but is None else session_named(connection, but)
        query = "SELECT id FROM turns WHERE session = ?"
        session = -1 if record is None else record.id
        self._left_out = {row[0] for row in connection.execute(query, (session,))}

    def __len__(self) -> int:
        return max(self._last, MIN_TURNS)

    def with_word(self, word: str) -> WithWord:
        """The latest turns that contain the word. If there are too many of them to be counted, the
        others are taken to be as frequent as these."""
        if word not in self._known:
            query = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?"
            # In quotes, nothing in it is an operator; a word contains no quotes.
            rows = self._connection.execute(query, (f'"{word}"', MOST_WITH_WORD)).fetchall()
            found = [row[0] for row in rows if row[0] not in self._left_out]
            count = len(found)
            if len(rows) == MOST_WITH_WORD:
                count = count * self._last // (self._last - rows[-1][0] + 1)
            self._known[word] = WithWord(found, count)
        return self._known[word]


class _Stated:
    """The sentences that the candidates state, among all turns."""

    def __init__(self, turns: _Turns, candidates: Mapping[int, Quoted]) -> None:
        self._turns, self._candidates = turns, candidates
        self._index = Index()
        self.turn_of: list[int] = []
        for id_, quoted in candidates.items():
            stated = Said.of(quoted.turn.user[:MOST_CHARS]).stated
            for sentence in sentences(stated):
                self._index.add(len(self.turn_of), sentence, typed=is_typed(stated))
                self.turn_of.append(id_)

    def __len__(self) -> int:
        return len(self._turns)

    def with_word(self, word: str) -> WithWord:
        """The sentences with the word, and how many turns have it. Candidates that only ask with it
        do not count."""
        numbers = self._index.with_word(word).numbers
        stating = {self.turn_of[number] for number in numbers}
        found = self._turns.with_word(word)
        asking = sum(id_ in self._candidates and id_ not in stating for id_ in found.numbers)
        return WithWord(numbers, found.count - asking)

    def amount_of(self, number: int) -> float:
        return self._index.amount_of(number)

    def is_own(self, number: int) -> bool:
        return self._index.is_own(number)
