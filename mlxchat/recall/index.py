"""Texts, searchable by word: an index in memory that grows with each text."""

from __future__ import annotations

import sqlite3

from mlxchat.recall.words import amount, is_about_own, words

# A line or a heading of a pasted text says at least as much as this many informative words.
LEAST_PASTED = 3.0


class Index:
    """Texts by the numbers that `add` was given. Words match in all their forms (Porter's)."""

    def __init__(self) -> None:
        # Used by one thread at a time, but not always by the same one.
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE texts USING fts5(words, content='', tokenize='porter unicode61')"
        )
        self._amounts: dict[int, float] = {}
        self._own: set[int] = set()

    def __len__(self) -> int:
        return len(self._amounts)

    def add(self, number: int, text: str, *, typed: bool = True) -> None:
        """`typed` is whether the words are the speaker's: only then "my" is about their things."""
        row = (number, " ".join(words(text)))
        self._database.execute("INSERT INTO texts (rowid, words) VALUES (?, ?)", row)
        self._amounts[number] = amount(text) if typed else max(LEAST_PASTED, amount(text))
        if typed and is_about_own(text):
            self._own.add(number)

    def amount_of(self, number: int) -> float:
        """How much the text says, as `amount` counts it."""
        return self._amounts[number]

    def is_own(self, number: int) -> bool:
        """Whether the text speaks of the speaker's own things."""
        return number in self._own

    def with_word(self, word: str) -> list[int]:
        """The texts that contain the word."""
        # In quotes, nothing in it is an operator; a word contains no quotes.
        query = "SELECT rowid FROM texts WHERE texts MATCH ?"
        return [row[0] for row in self._database.execute(query, (f'"{word}"',))]
