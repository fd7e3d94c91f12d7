"""How well each text fits a message: the share of the message's information that it contains."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Protocol

from mlxchat.recall.index import WithWord
from mlxchat.recall.words import informative, is_short_number, names, words

# Tuned on scripts/recall_tuning.py. A text fits if it contains this share of the message...
ENOUGH = 0.4
# ... or this share, if the speaker asks about their own things.
ENOUGH_OF_OWN = 0.3
# A name or a number says more than another word.
WEIGHT_OF_NAME = 2.0
# A word in this many texts may say something.
COMMON = 4
# Words of a message that are looked up: of a long one, the first.
MOST_WORDS = 64
# Not "me": "give me" and "tell me" ask for something of the world.
_OWN_WORDS = "i my mine we us our ours ich mein meine wir unser je mon ma mes"
_OWN = frozenset(_OWN_WORDS.split())
_OWN_UNSPACED = ("我", "私", "僕")


class Searchable(Protocol):
    """Numbered texts."""

    def __len__(self) -> int: ...

    def with_word(self, word: str) -> WithWord: ...


@dataclass(frozen=True, slots=True)
class Fit:
    """A text, and the share of the message's information that it contains."""

    number: int
    share: float


def fits(index: Searchable, message: str) -> list[Fit]:
    """The texts that fit the message, best first, the latest first among equals."""
    wanted = ENOUGH_OF_OWN if _is_about_own(message) else ENOUGH
    return [fit for fit in by_share(index, message) if fit.share >= wanted]


def by_share(index: Searchable, message: str) -> list[Fit]:
    """The texts that contain anything that the message is about, in the same order."""
    named = names(message)
    total, of_text = 0.0, dict[int, float]()
    # A number that counts something is no match alone.
    with_more: set[int] = set()
    for word in informative(message)[:MOST_WORDS]:
        found = index.with_word(word)
        # A word that nobody said before counts as one that was said once.
        information = log(1 + len(index) / (max(found.count, 1) + 0.5))
        if word in named:
            information *= WEIGHT_OF_NAME
        total += information
        if not _says_little(found.count, len(index)):
            for number in found.numbers:
                of_text[number] = of_text.get(number, 0) + information
            if not is_short_number(word):
                with_more.update(found.numbers)
    found = [Fit(number, of_text[number] / total) for number in with_more]
    return sorted(found, key=lambda fit: (round(fit.share, 6), fit.number), reverse=True)


def _says_little(found: int, texts: int) -> bool:
    """Whether a word is in too many texts: more than a tenth, or of few texts more than a third."""
    return found > max(COMMON, texts // 10) or (found == COMMON and found > texts // 3)


def _is_about_own(message: str) -> bool:
    return not _OWN.isdisjoint(words(message)) or any(each in message for each in _OWN_UNSPACED)
