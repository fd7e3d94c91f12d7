"""How well each text fits a message: by the message's information that it contains, and by how
little else it says. The texts are indexed by word, in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt
from typing import Protocol

from mlxchat.recall.words import (
    EVERYDAY_WORDS,
    amount,
    informative,
    is_about_own,
    is_short_number,
    kinds,
    names,
    words,
)

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
    """Texts, searchable by word: in memory, growing with each text. Words match in all their forms
    (Porter's)."""

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
        """Add what `number` says. `typed` is whether the words are the speaker's: only then "my" is
        about their things."""
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

    def with_word(self, word: str) -> list[int]:
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
# Everyday words alone suffice if they are this much of it, and both speak of the speaker's own
# things: "my job".
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

    def with_word(self, word: str) -> Sequence[int]:
        """The texts that contain a word; if it says little, maybe only some."""
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
        own = _own(message=about_own, text=text.is_own)
        if fit.share < (LEAST_SHARE_IF_OWN if own == 2 else LEAST_SHARE):
            continue
        if EVERYDAY_WORDS.issuperset(fit.words) and (own < 2 or fit.share < MOST_OF_IT):
            continue
        share_of_text = min(1.0, len(fit.words) / min(text.amount, MOST_AMOUNT))
        closeness = sqrt(fit.share * share_of_text)
        if closeness >= _enough(len(index), own, len(fit.words)):
            found.append(replace(fit, closeness=closeness))
    return sorted(found, key=lambda each: (round(each.closeness, 6), each.number), reverse=True)


def chosen(closeness: Mapping[int, float], at_most: int) -> list[int]:
    """Of texts by number, at most that many: the closest and those nearly as close, such as a fact
    and its change. Of those that hardly differ in closeness, the latest."""
    nearest = max(closeness.values(), default=0.0)
    near = [number for number, each in closeness.items() if each >= NEARLY * nearest]
    alike = sorted((n for n in near if closeness[n] >= ALIKE * nearest), reverse=True)
    rest = sorted({*near} - {*alike}, key=lambda number: closeness[number], reverse=True)
    return [*alike, *rest][:at_most]


def _own(*, message: bool, text: bool) -> float:
    """How many of the two are about the speaker's own things. The text counts half if the message
    is about the world, such as "Can cats see colours?"."""
    return message + (1 if message else 0.5) * text


def _enough(texts: int, own: float, words: int) -> float:
    """The closeness to be reached, if `own` of text and message are about own things, and have so
    many words in common."""
    of_many = MORE_OF_MANY * max(0.0, log(texts / FEW_TEXTS))
    if words == 1:
        of_many *= MORE_IF_ONE_WORD
    return ENOUGH - LESS_IF_OWN * own + of_many * (2 - own) / 2


def by_share(index: Searchable, message: str) -> list[Fit]:
    """The texts that contain anything that the message is about, those with most of it first."""
    looked_up = list(_look_up(index, message))
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
    return sorted(fits, key=lambda fit: (round(fit.share, 6), fit.number), reverse=True)


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a message: the `information` that a text has with it, the information `needed` of
    one that lacks it, and the `numbers` of the texts that have it."""

    text: str
    information: float
    needed: float
    numbers: Sequence[int]


def _look_up(index: Searchable, message: str) -> Iterator[_Word]:
    named = names(message)
    of_kind = kinds(message) - named - EVERYDAY_WORDS
    for word in informative(message)[:MOST_WORDS]:
        found = index.with_word(word)
        # A word that nobody said before counts as one that was said once.
        information = log(1 + len(index) / (max(len(found), 1) + 0.5))
        if word in named:
            information *= WEIGHT_OF_NAME
        elif word in EVERYDAY_WORDS:
            information *= WEIGHT_OF_EVERYDAY
        needed = information * (WEIGHT_OF_KIND if word in of_kind else 1)
        numbers = () if _says_little(len(found), len(index)) else found
        yield _Word(word, information, needed, numbers)


def _share(found: Sequence[_Word], needed: float) -> float:
    """The share that a text with the words `found` has of a message's information."""
    has = sum(word.information for word in found)
    return has / (has + needed - sum(word.needed for word in found))


def _says_little(found: int, texts: int) -> bool:
    """Whether a word is in too many texts: more than a tenth, or of few texts more than a third."""
    return found > max(COMMON, texts // 10) or (found == COMMON and found > texts // 3)
