"""What a text states, and what it asks: a question seldom contains the answer to another. And the
part of it that says most of what a message asks about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlxchat.recall.words import WORDS, informative, is_about_own, words

# Words of a text that people type.
MOST_TYPED = 60
# Words of a sentence: a log or a list may never end one.
MOST_OF_SENTENCE = 40
_SENTENCE_END = re.compile(r"(?<=[.!?؟])(?=\s)|(?<=[。！？\n])")
_QUESTION_MARKS = ("?", "？", "؟")
_CLAUSE_END = re.compile(r"(?<=[,;:，；：、])(?!\d)")
# Of the part's characters, how many come before the first word that was asked for.
SHARE_BEFORE = 4
_PIECE = re.compile(r"\S+")
_POLITE = frozenset(("please", "bitte"))


@dataclass(frozen=True, slots=True)
class Said:
    """The two halves of a text; either may be empty."""

    stated: str
    asked: str

    @classmethod
    def of(cls, text: str) -> Said:
        stated: list[str] = []
        asked: list[str] = []
        for sentence in _SENTENCE_END.split(text):
            if not sentence.rstrip().endswith(_QUESTION_MARKS):
                (asked if _requests(sentence) else stated).append(sentence)
                continue
            # "My dog limps, what can I do?" states something first.
            clauses = _CLAUSE_END.split(sentence)
            first = 0
            while first < len(clauses) - 1 and not _begins_asking(clauses[first]):
                first += 1
            stated += clauses[:first]
            asked += clauses[first:]
        return cls("".join(stated), "".join(asked))


def is_typed(text: str) -> bool:
    """Whether it is as short as what people type; else it counts as pasted."""
    return len(text.split()) <= MOST_TYPED


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text; of a longer one, pieces."""
    for sentence in _SENTENCE_END.split(text):
        pieces = sentence.split()
        if len(pieces) <= MOST_OF_SENTENCE:
            yield sentence
            continue
        for start in range(0, len(pieces), MOST_OF_SENTENCE):
            yield " ".join(pieces[start : start + MOST_OF_SENTENCE])


def excerpt(text: str, message: str, limit: int) -> str:
    """At most about `limit` characters of the text, on one line, with "…" where something is left
    out; its beginning if it says nothing of the message."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    wanted = set(informative(message))
    places = [
        piece.start()
        for piece in _PIECE.finditer(line)
        if not wanted.isdisjoint(words(piece.group()))
    ]
    starts = [max(0, place - limit // SHARE_BEFORE) for place in places] or [0]
    best = max(starts, key=lambda start: sum(start <= place < start + limit for place in places))
    start = min(best, len(line) - limit)
    if start > 0:
        # From the next word on.
        start += len(line[start:]) - len(line[start:].partition(" ")[2] or line[start:])
    cut = line[start : start + limit].rstrip()
    after = "…" if start + limit < len(line) else ""
    return f"{'…' if start > 0 else ''}{cut}{after}"


def _requests(sentence: str) -> bool:
    """Whether it asks for something of the world, as "Tell me about tea." does. "Write a poem about
    my dog Rex." states something."""
    said = words(sentence)
    first = said[1:2] if said and said[0] in _POLITE else said[:1]
    return not WORDS["requesting"].isdisjoint(first) and not is_about_own(sentence)


def _begins_asking(clause: str) -> bool:
    return not WORDS["asking"].isdisjoint(words(clause)[:1])
