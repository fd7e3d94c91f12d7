"""Finds the texts that a message needs: by the message's information that they contain, and by how
little else they say; it abstains if none fits. First the words of a text, then what it states and
what it asks (a question seldom contains the answer to another), then the index in memory and the
choice. Knows nothing of turns, tokens or models."""

from __future__ import annotations

import re
import sqlite3
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log, sqrt
from pathlib import Path
from typing import Protocol

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
    found: list[str] = []
    for piece in _PIECE.findall(unicodedata.normalize("NFKC", text).casefold()):
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
_UNBROKEN = re.compile(r"[^\s。！？，、；：]+")
_POLITE = frozenset(("please", "bitte"))
# Characters of a message that say whether it holds from then on.
_BEGINNING_CHARS = 300


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
            at = 0
            while at < len(clauses) - 1 and WORDS["asking"].isdisjoint(words(clauses[at])[:1]):
                at += 1
            stated += clauses[:at]
            asked += clauses[at:]
        return cls("".join(stated), "".join(asked))


def is_standing(message: str) -> bool:
    """Whether it begins like what holds from then on: "always", "my name is"."""
    first = next(sentences(message.strip()[:_BEGINNING_CHARS]), "").rstrip()
    said = words(first)
    said = said[said[:1] == ["please"] :]

    def begins(name: str) -> bool:
        return any(said[: len(each)] == each for each in map(words, _LISTS[name].split(",")))

    return begins("standing") and not begins("not_standing") and not first.endswith(_QUESTION_MARKS)


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
    pieces = _UNBROKEN.finditer(line)
    places = [each.start() for each in pieces if not wanted.isdisjoint(words(each.group()))]
    starts = [max(0, place - limit // SHARE_BEFORE) for place in places] or [0]
    best = max(starts, key=lambda start: sum(start <= place < start + limit for place in places))
    start = min(best, len(line) - limit)
    if start > 0:
        # From the next word on.
        start += len(line[start:]) - len(line[start:].partition(" ")[2] or line[start:])
    cut = line[start : start + limit].rstrip()
    return f"{'…' if start > 0 else ''}{cut}{'…' if start + limit < len(line) else ''}"


def _requests(sentence: str) -> bool:
    """Whether it asks for something of the world: "Tell me about tea.", not "Write of my dog."."""
    said = words(sentence)
    first = said[1:2] if said and said[0] in _POLITE else said[:1]
    return not WORDS["requesting"].isdisjoint(first) and not is_about_own(sentence)


# What fits

# A line or a heading of a pasted text says at least as much as this many informative words.
LEAST_PASTED = 3.0


@dataclass(slots=True)
class Text:
    """A sentence, and the `numbers` of those who say it: the same words count once. `amount` is how
    much it says, `is_own` whether it speaks of the speaker's own things."""

    words: frozenset[str]
    names: frozenset[str]
    amount: float
    is_own: bool
    numbers: list[int]


class Index:
    """Texts in memory, searchable by word: words match in all their forms (Porter's)."""

    def __init__(self) -> None:
        # Used by one thread at a time, but not always by the same one.
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE texts USING fts5(words, content='', tokenize='porter unicode61')"
        )
        self.texts: list[Text] = []
        self._known: dict[frozenset[str], Text] = {}

    def __len__(self) -> int:
        return len(self.texts)

    def add(self, number: int, text: str, *, typed: bool = True) -> None:
        """Add what `number` says. If `typed`, the words are the speaker's own, and so is "my"."""
        own = frozenset(informative(text))
        if own in self._known:
            self._known[own].numbers.append(number)
        elif own:
            row = len(self.texts), " ".join(words(text))
            self._database.execute("INSERT INTO texts (rowid, words) VALUES (?, ?)", row)
            says = amount(text) if typed else max(LEAST_PASTED, amount(text))
            is_own = typed and is_about_own(text)
            self._known[own] = Text(own, own & names(text), says, is_own, [number])
            self.texts.append(self._known[own])

    def with_word(self, word: str, often: bool = False, /) -> list[int]:
        """The places of the texts that contain the word."""
        # In quotes, nothing in it is an operator; a word contains no quotes.
        query = "SELECT rowid FROM texts WHERE texts MATCH ?"
        return [row[0] for row in self._database.execute(query, (f'"{word}"',))]


# Never tuned on scripts/bench/facts. A text fits if it is at least this close to the message.
ENOUGH = 0.36
# So much less is enough if the message is about the speaker's own things, and again if the text is;
# half as much if only the text is.
LESS_IF_OWN = 0.075
# The more texts there are, the closer one of them is by chance. Each time their number grows by a
# factor of e beyond the first of these, a text must be closer by the second; by less if they are
# about the speaker's own things, by nothing if both are.
FEW_TEXTS = 300
MORE_OF_MANY = 0.1
# A single word in common is more often chance: by so much more must such a text be closer then.
MORE_IF_ONE_WORD = 1.5
# A text has at least this much of the message's information, however little else it says; less if
# both are about the speaker's own things.
LEAST_SHARE = 0.35
LEAST_SHARE_IF_OWN = 0.3
# Everyday words suffice if they are this much of it, and both are about one's own: "my job".
MOST_OF_IT = 0.7
# Longer texts are not penalized further: people often say a lot in one sentence.
MOST_AMOUNT = 6
# A text is chosen beside a closer one if it is nearly as close...
NEARLY = 0.5
# ... or in its place, if it was said later and hardly less close.
ALIKE = 0.8
# A name or a number says more than another word.
WEIGHT_OF_NAME = 2.0
# An everyday word says less.
WEIGHT_OF_EVERYDAY = 0.4
# So much less does a text lack without the word for the kind of thing that is asked for.
WEIGHT_OF_KIND = 0.3
# A word in this many texts may say something.
COMMON = 4
# Words of a message that are looked up: of a long one, the first.
MOST_WORDS = 64


class Searchable(Protocol):
    """Numbered texts."""

    def __len__(self) -> int: ...

    def with_word(self, word: str, often: bool = False, /) -> Sequence[int]:
        """The texts that contain a word; if it is in many, maybe only some, unless `often`."""
        ...


@dataclass(frozen=True, slots=True)
class Fit:
    """A text that has some `words` of a message, and the `share` of its information in them.
    `closeness` is the geometric mean of that and of the message's share of the text."""

    number: int
    share: float
    words: tuple[str, ...]
    closeness: float = 0.0


def closest(index: Index, message: str) -> list[Fit]:
    """The texts that fit the message, best first, the latest first among equals."""
    about_own = is_about_own(message)
    found: list[Fit] = []
    for fit in by_share(index, message):
        text = index.texts[fit.number]
        # How many of the two are about the speaker's own things. The text counts half if the
        # message is about the world, such as "Can cats see colours?".
        own = about_own + (1 if about_own else 0.5) * text.is_own
        if fit.share < (LEAST_SHARE_IF_OWN if own == 2 else LEAST_SHARE):
            continue
        if EVERYDAY_WORDS.issuperset(fit.words) and (own < 2 or fit.share < MOST_OF_IT):
            continue
        closeness = sqrt(fit.share * min(1.0, len(fit.words) / min(text.amount, MOST_AMOUNT)))
        if closeness >= _enough(len(index), own, len(fit.words)):
            found.append(replace(fit, closeness=closeness))
    return sorted(found, key=lambda each: (round(each.closeness, 6), each.number), reverse=True)


def chosen(fits: Mapping[int, tuple[float, float]], at_most: int) -> list[int]:
    """Of texts by number, with closeness and share, at most that many: the closest and those nearly
    as close, such as a fact and its change. Of those that are hardly less close, the one with most
    of the message; of those that have as much, the latest."""
    nearest = max((each for each, _ in fits.values()), default=0.0)
    near = [number for number, (each, _) in fits.items() if each >= NEARLY * nearest]
    alike = [number for number in near if fits[number][0] >= ALIKE * nearest]
    alike.sort(key=lambda number: (round(fits[number][1], 6), number), reverse=True)
    rest = sorted({*near} - {*alike}, key=lambda number: fits[number], reverse=True)
    return [*alike, *rest][:at_most]


def _enough(texts: int, own: float, words: int) -> float:
    """The closeness needed, if `own` of both are about own things, and they share as many words."""
    of_many = MORE_OF_MANY * max(0.0, log(texts / FEW_TEXTS))
    if words == 1:
        of_many *= MORE_IF_ONE_WORD
    return ENOUGH - LESS_IF_OWN * own + of_many * (2 - own) / 2


def by_share(index: Searchable, message: str, often: bool = False, *phrases: str) -> list[Fit]:
    """The texts that contain anything that the message is about, and its `phrases`, those with most
    of it first. With `often`, a word that is in most of them counts, too."""
    looked_up = list(_look_up(index, message, often, phrases))
    needed = sum(word.needed for word in looked_up)
    of_text: dict[int, list[_Word]] = {}
    for word in looked_up:
        for number in word.numbers:
            of_text.setdefault(number, []).append(word)
    fits = [
        Fit(number, _share(found, needed), tuple(word.text for word in found))
        for number, found in of_text.items()
        # A number that counts something is no match alone.
        if not all(is_short_number(word.text) for word in found)
    ]
    return sorted(fits, key=lambda fit: (round(fit.share, 6), often or fit.number), reverse=True)


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a message: the `information` that a text has with it, the information `needed` of
    one that lacks it, and the `numbers` of the texts that have it."""

    text: str
    information: float
    needed: float
    numbers: Sequence[int]


def _look_up(index: Searchable, message: str, often: bool, more: Sequence[str]) -> Iterator[_Word]:
    named = names(message)
    # The kinds of thing asked for, which answers seldom name: "city" in "Which city is it in?".
    asked = {word for asking, word in pairwise(words(message)) if asking in WORDS["asks_kind"]}
    of_kind = asked - named - EVERYDAY_WORDS
    for word in [*more, *informative(message)][:MOST_WORDS]:
        found = index.with_word(word, often)
        # A word that nobody said before counts as one that was said once.
        information = log(1 + len(index) / (max(len(found), 1) + 0.5))
        if word in named:
            information *= WEIGHT_OF_NAME
        elif word in EVERYDAY_WORDS:
            information *= WEIGHT_OF_EVERYDAY
        needed = information * (WEIGHT_OF_KIND if word in of_kind else 1)
        # More than a tenth of the texts, or of few texts more than a third: it says little.
        n, texts = len(found), len(index)
        little = n > max(COMMON, texts // 10) or (n == COMMON and n > texts // 3)
        yield _Word(word, information, needed, () if little and not often else found)


def _share(found: Sequence[_Word], needed: float) -> float:
    """The share that a text with the words `found` has of a message's information."""
    has = sum(word.information for word in found)
    return has / (has + needed - sum(word.needed for word in found))
