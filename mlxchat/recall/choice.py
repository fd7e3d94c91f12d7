"""How well each text fits a message: by the message's information that it contains, and by how
little else it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import Protocol

from mlxchat.recall.index import WithWord
from mlxchat.recall.words import EVERYDAY_WORDS, informative, is_about_own, is_short_number, names

# Tuned on scripts/recall_tuning*.py. A text fits if it is at least this close to the message.
ENOUGH = 0.36
# So much less is enough if the message is about the speaker's own things, and again if the text is;
# half as much if only the text is.
LESS_IF_OWN = 0.075
# The more texts there are, the closer one of them is by chance. Each time their number grows by a
# factor of e beyond the first of these, a text must be closer by the second; by less if they are
# about the speaker's own things, by nothing if both are.
FEW_TEXTS = 300
MORE_OF_MANY = 0.08
# A text has at least this much of the message's information, however little else it says.
LEAST_SHARE = 0.35
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
# A word in this many texts may say something.
COMMON = 4
# Words of a message that are looked up: of a long one, the first.
MOST_WORDS = 64


class Searchable(Protocol):
    """Numbered texts."""

    def __len__(self) -> int: ...

    def with_word(self, word: str) -> WithWord: ...


class Described(Searchable, Protocol):
    """Texts of which more is known."""

    def amount_of(self, number: int) -> float:
        """How much the text says, as `amount` counts it."""
        ...

    def is_own(self, number: int) -> bool:
        """Whether the text speaks of the speaker's own things."""
        ...


@dataclass(frozen=True, slots=True)
class Fit:
    """A text that has some `words` of a message, and the `share` of its information in them."""

    number: int
    share: float
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """A text that fits a message. `closeness` is the geometric mean of the shares that each has of
    the other: `share` is that of the message's information."""

    number: int
    share: float
    closeness: float


def closest(index: Described, message: str) -> list[Close]:
    """The texts that fit the message, best first, the latest first among equals."""
    about_own = is_about_own(message)
    found: list[Close] = []
    for fit in by_share(index, message):
        own = _own(message=about_own, text=index.is_own(fit.number))
        if fit.share < LEAST_SHARE:
            continue
        if EVERYDAY_WORDS.issuperset(fit.words) and (own < 2 or fit.share < MOST_OF_IT):
            continue
        share_of_text = min(1.0, len(fit.words) / min(index.amount_of(fit.number), MOST_AMOUNT))
        closeness = sqrt(fit.share * share_of_text)
        if closeness >= _enough(len(index), own):
            found.append(Close(fit.number, fit.share, closeness))
    return sorted(found, key=lambda each: (round(each.closeness, 6), each.number), reverse=True)


def chosen(
    closeness: Mapping[int, float], said_at: Callable[[int], int | str], at_most: int
) -> list[int]:
    """Of texts by number, at most that many: the closest and those nearly as close, such as a fact
    and its change. Of those that hardly differ in closeness, the latest."""
    nearest = max(closeness.values(), default=0.0)
    near = [number for number, each in closeness.items() if each >= NEARLY * nearest]
    alike = sorted((n for n in near if closeness[n] >= ALIKE * nearest), key=said_at, reverse=True)
    rest = sorted({*near} - {*alike}, key=lambda number: closeness[number], reverse=True)
    return [*alike, *rest][:at_most]


def _own(*, message: bool, text: bool) -> float:
    """How many of the two are about the speaker's own things. The text counts half if the message
    is about the world, such as "Can cats see colours?"."""
    return message + (1 if message else 0.5) * text


def _enough(texts: int, own: float) -> float:
    """The closeness to be reached, if `own` of text and message are about own things."""
    of_many = MORE_OF_MANY * max(0.0, log(texts / FEW_TEXTS))
    return ENOUGH - LESS_IF_OWN * own + of_many * (2 - own) / 2


def by_share(index: Searchable, message: str) -> list[Fit]:
    """The texts that contain anything that the message is about, those with most of it first."""
    named = names(message)
    total, of_text = 0.0, dict[int, float]()
    words_of_text: dict[int, list[str]] = {}
    for word in informative(message)[:MOST_WORDS]:
        found = index.with_word(word)
        # A word that nobody said before counts as one that was said once.
        information = log(1 + len(index) / (max(found.count, 1) + 0.5))
        if word in named:
            information *= WEIGHT_OF_NAME
        elif word in EVERYDAY_WORDS:
            information *= WEIGHT_OF_EVERYDAY
        total += information
        if not _says_little(found.count, len(index)):
            for number in found.numbers:
                of_text[number] = of_text.get(number, 0) + information
                words_of_text.setdefault(number, []).append(word)
    fits = [
        Fit(number, of_text[number] / total, tuple(words))
        for number, words in words_of_text.items()
        # A number that counts something is no match alone.
        if not all(map(is_short_number, words))
    ]
    return sorted(fits, key=lambda fit: (round(fit.share, 6), fit.number), reverse=True)


def _says_little(found: int, texts: int) -> bool:
    """Whether a word is in too many texts: more than a tenth, or of few texts more than a third."""
    return found > max(COMMON, texts // 10) or (found == COMMON and found > texts // 3)
