"""Texts, searchable by word: an index in memory that grows with each text."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from mlxchat.recall.words import words


@dataclass(frozen=True, slots=True)
class WithWord:
    """The numbers of the texts that contain a word, if too many not all; and how many there are."""

    numbers: list[int]
    count: int


class Index:
    """Texts by the numbers that `add` was given. Words match in all their forms (Porter's)."""

    def __init__(self) -> None:
        # Used by one thread at a time, but not always by the same one.
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE texts USING fts5(words, content='', tokenize='porter unicode61')"
        )
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, number: int, text: str) -> None:
        row = (number, " ".join(words(text)))
        self._database.execute("INSERT INTO texts (rowid, words) VALUES (?, ?)", row)
        self._count += 1

    def with_word(self, word: str) -> WithWord:
        """The texts that contain the word."""
        # In quotes, nothing in it is an operator; a word contains no quotes.
        query = "SELECT rowid FROM texts WHERE texts MATCH ?"
        found = [row[0] for row in self._database.execute(query, (f'"{word}"',))]
        return WithWord(found, len(found))
