"""The words of a text, as they are indexed and searched for; what it states, and what it asks: a
question seldom contains the answer to another; and the part that says most of what a message asks
about."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

# Scripts without spaces between words: Thai to Khmer, and Japanese and Chinese.
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_PIECE = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
# A capital after another word of the same sentence.
_CAPITALIZED = re.compile(r"(?<=[\w,] )[A-Z]\w+")
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"\w+")
# The "don" of "don't" is nobody's name.
_NEGATED = re.compile(r"\b(\w+n)['’]t\b", re.IGNORECASE)
# A number this short counts something; a longer one identifies it.
SHORT_NUMBER = 3
_IS_UNSPACED = re.compile(rf"[{_UNSPACED}]")

_LISTS: dict[str, str] = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
WORDS = {name: frozenset(words.split()) for name, words in _LISTS.items()}
EMPTY_WORDS, EVERYDAY_WORDS = WORDS["empty"], WORDS["everyday"]
CALENDAR_WORDS = WORDS["calendar"]
_OWN_UNSPACED = ("我", "私", "僕")
# Nor "how do I" and "where can I": they ask what anybody does. "How much do I weigh?" does not.
_AS_ANYBODY = re.compile(r"\b(how|what) do i\b|\b(can|could|may|might|must|should|would) i\b")


def words(text: str) -> list[str]:
    """Words in order, folded; of scripts without spaces, each pair of neighbouring characters."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    found: list[str] = []
    for piece in _PIECE.findall(folded):
        if len(piece) > 1 and _IS_UNSPACED.match(piece):
            found += [first + second for first, second in pairwise(piece)]
        else:
            found.append(piece)
    return found


def informative(text: str) -> list[str]:
    """Each word once that may say what the text is about: no empty words, no single letters."""
    negated = {word.casefold() for word in _NEGATED.findall(text)}
    return [
        word
        for word in dict.fromkeys(words(text))
        if word not in EMPTY_WORDS and word not in negated and (len(word) > 1 or word.isdigit())
    ]


def names(text: str) -> set[str]:
    """The words that name or number something."""
    numbered = [word for word in _WORD.findall(text) if _DIGIT.search(word)]
    return set(words(" ".join([*_CAPITALIZED.findall(text), *numbered])))


def kinds(message: str) -> set[str]:
    """The words for the kind of thing that is asked for: "city" in "Which city is it in?". A text
    that answers seldom says them."""
    return {word for asking, word in pairwise(words(message)) if asking in WORDS["asks_kind"]}


def amount(text: str) -> float:
    """How much a text says: the number of its informative words, at least 1. Everyday words count
    half, and so do names and numbers, which are often what a message asks for."""
    halved = names(text) | EVERYDAY_WORDS
    return max(1.0, sum(0.5 if word in halved else 1.0 for word in informative(text)))


def is_short_number(word: str) -> bool:
    return word.isdigit() and len(word) <= SHORT_NUMBER


def is_about_own(message: str) -> bool:
    """Whether it speaks of the speaker's own things."""
    said = words(message)
    if not WORDS["own"].isdisjoint(said) or any(each in message for each in _OWN_UNSPACED):
        return True
    return "i" in said and not _AS_ANYBODY.search(" ".join(said))


# Words of a text that people type.
MOST_TYPED = 60
# Words of a sentence: a log or a list may never end one.
MOST_OF_SENTENCE = 40
_SENTENCE_END = re.compile(r"(?<=[.!?؟])(?=\s)|(?<=[。！？\n])")
_QUESTION_MARKS = ("?", "？", "؟")
_CLAUSE_END = re.compile(r"(?<=[,;:，；：、])(?!\d)")
# Of the part's characters, how many come before the first word that was asked for.
SHARE_BEFORE = 4
_UNBROKEN = re.compile(r"\S+")
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
        for piece in _UNBROKEN.finditer(line)
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
