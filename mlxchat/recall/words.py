"""The words of a text, as they are indexed and searched for."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

# Scripts without spaces between words: Thai to Khmer, and Japanese and Chinese.
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_PIECE = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
# A capital after another word of the same sentence.
_CAPITALIZED = re.compile(r"(?<=[\w,] )[A-Z]\w+")
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"\w+")
# A number this short counts something; a longer one identifies it.
SHORT_NUMBER = 3
_IS_UNSPACED = re.compile(rf"[{_UNSPACED}]")

# Words that say nothing of what is asked, in any conversation. The others are found by their
# frequency; this list is for the first turns, when every word is rare.
_EMPTY = (
    "about again all also an and any are as ask asked at be been by call called can could "
    "did do does else few for from give go good had has have he her hers him his how if in "
    "is it its let like long many may me mean meant mine more most much my need "
    "new no not now of on one or our ours please put remind remember said say see she should "
    "show so some still such take tell than that the their them then there these they thing "
    "this to told too under up us use used was we well were what when where which while who "
    "whom whose why will with would yes you your ours best between difference make "
    "write explain list suggest thanks thank hello day "
    "der die das ein eine ist wie was wer wo wann mir mein meine unser wir ich und in zu "
    "le la les un une est quel quelle quelles de du des mon ma mes que qui je et nous"
)
EMPTY_WORDS = frozenset(_EMPTY.split())


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
    return [
        word
        for word in dict.fromkeys(words(text))
        if word not in EMPTY_WORDS and (len(word) > 1 or word.isdigit())
    ]


def names(text: str) -> set[str]:
    """The words that name or number something."""
    numbered = [word for word in _WORD.findall(text) if _DIGIT.search(word)]
    return set(words(" ".join([*_CAPITALIZED.findall(text), *numbered])))


def is_short_number(word: str) -> bool:
    return word.isdigit() and len(word) <= SHORT_NUMBER
