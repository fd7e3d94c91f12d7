"""What a text states, and what it asks: a question seldom contains the answer to another."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlxchat.recall.words import words

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
                stated.append(sentence)
                continue
            # "My dog limps, what can I do?" states something first.
            clauses = _CLAUSE_END.split(sentence)
            first = 0
            while first < len(clauses) - 1 and not _begins_asking(clauses[first]):
                first += 1
            stated += clauses[:first]
            asked += clauses[first:]
        return cls("".join(stated), "".join(asked))


def _begins_asking(clause: str) -> bool:
    return not _BEGINS_ASKING.isdisjoint(words(clause)[:1])
