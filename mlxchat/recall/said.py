"""What a text states, and what it asks: a question seldom contains the answer to another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlxchat.recall.words import is_about_own, words

# Words of a text that people type.
MOST_TYPED = 60
# Words of a sentence: a log or a list may never end one.
MOST_OF_SENTENCE = 40
_SENTENCE_END = re.compile(r"(?<=[.!?؟])(?=\s)|(?<=[。！？\n])")
_QUESTION_MARKS = ("?", "？", "؟")
_CLAUSE_END = re.compile(r"(?<=[,;:，；：、])(?!\d)")
_ASKING = (
    "what whats who whos whom whose when where which why how do does did is are am was were can "
    "could would should will shall may might have has had remind remember tell know and or so but "
    "was wer wen wem wo wann warum wie welche welcher welches welchen ist sind hat haben kann "
    "que quel quelle quels quelles qui où quand comment combien pourquoi est"
)
_BEGINS_ASKING = frozenset(_ASKING.split())
_REQUESTING = (
    "compare define describe draft explain give list name recommend show suggest summarize tell "
    "translate write erkläre erzähl erzähle gib nenne schreib schreibe zeig explique écris raconte"
)
_BEGINS_REQUESTING = frozenset(_REQUESTING.split())
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


def _requests(sentence: str) -> bool:
    """Whether it asks for something of the world, as "Tell me about tea." does. "Write a poem about
    my dog Rex." states something."""
    said = words(sentence)
    first = said[1:2] if said and said[0] in _POLITE else said[:1]
    return not _BEGINS_REQUESTING.isdisjoint(first) and not is_about_own(sentence)


def _begins_asking(clause: str) -> bool:
    return not _BEGINS_ASKING.isdisjoint(words(clause)[:1])
