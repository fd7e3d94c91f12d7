"""How well each text fits a message: the share of the message's information that it contains."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import log

from mlxchat.recall.index import Index
from mlxchat.recall.words import informative, words

# Tuned on scripts/recall_tuning.py. A text fits if it contains this share of the message...
ENOUGH = 0.4
# ... or this share, if the speaker asks about their own things.
ENOUGH_OF_OWN = 0.3
# A name or a number says more than another word.
WEIGHT_OF_NAME = 2.0
# Words of a message that are looked up: of a long one, the first.
MOST_WORDS = 64
# Not "me": "give me" and "tell me" ask for something of the world.
_OWN_WORDS = "i my mine we us our ours ich mein meine wir unser je mon ma mes"
_OWN = frozenset(_OWN_WORDS.split())
_OWN_UNSPACED = ("我", "私", "僕")
# A capital after another word of the same sentence, or a digit.
_NAME = re.compile(r"(?<=[\w,] )[A-Z]\w+|\w*\d\w*")


@dataclass(frozen=True, slots=True)
class Fit:
    """A text, and the share of the message's information that it contains."""

    number: int
    share: float


def fits(index: Index, message: str) -> list[Fit]:
    """The texts that fit the message, best first, the latest first among equals."""
    names = set(words(" ".join(_NAME.findall(message))))
    total, of_text = 0.0, dict[int, float]()
    for word in informative(message)[:MOST_WORDS]:
        found = index.with_word(word)
        # A word that nobody said before counts as one that was said once.
        information = log(1 + len(index) / (max(len(found), 1) + 0.5))
        if word in names:
            information *= WEIGHT_OF_NAME
        total += information
        # A word that is in a tenth of all texts says little about any of them.
        if len(found) <= max(4, len(index) // 10):
            for number in found:
                of_text[number] = of_text.get(number, 0) + information
    wanted = ENOUGH_OF_OWN if _is_about_own(message) else ENOUGH
    found = [Fit(number, share / total) for number, share in of_text.items()]
    enough = [fit for fit in found if fit.share >= wanted]
    return sorted(enough, key=lambda fit: (round(fit.share, 6), fit.number), reverse=True)


def _is_about_own(message: str) -> bool:
    return not _OWN.isdisjoint(words(message)) or any(each in message for each in _OWN_UNSPACED)
