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
# The "don" of "don't" is nobody's name.
_NEGATED = re.compile(r"\b(\w+n)['’]t\b", re.IGNORECASE)
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
    "am let lets ve ll re "
    "der die das ein eine ist wie was wer wo wann mir mein meine unser wir ich und in zu "
    "le la les un une est quel quelle quelles de du des mon ma mes que qui je et nous "
    "nicht kein habe hat bin sind mit auf von dem den pas ne ai suis en dans pour avec sur ce"
)
EMPTY_WORDS = frozenset(_EMPTY.split())
# Words of everyday talk. Beside another word they say something; alone, they are shared by chance.
_EVERYDAY = (
    "able agree agreed answer answered answers asking back bad believe better big bigger bit case "
    "cases change changed come comes continue continued course days different doing done earlier "
    "early easier easy end ends ever everyone everything example examples fact far fast faster "
    "feel feels felt find finding finds first found full get gets getting goes going gone got "
    "great happen happened happens hard harder hear heard help helped helps here hi high higher "
    "hope hour hours idea ideas important just keep keeps kind kinds know knowing known knows "
    "large larger last late later learn learned learning leave leaves left less liked likes "
    "little live lived lives living longer look looked looking looks lot love low lower made "
    "matter maybe means minute minutes month months morning move needed needs never newer next "
    "nice night number numbers often ok okay old older once only order other others part parts "
    "people place places play played playing plays point points possible pretty question "
    "questions quite read really remains right run runs same saying says second seem seems "
    "sentence sentences set several short shorter simple since slow slowly small smaller someone "
    "something sometimes soon sorry sort speak stand start started starts stay step steps stop "
    "stopped sure talk talks thing think thinking thinks thought three time times today together "
    "tomorrow tonight try turn turned turns two understand understands understood used using want "
    "wanted wants way ways week weeks welcome whole word words work worked working works world "
    "wrong year years yesterday young younger"
)
EVERYDAY_WORDS = frozenset(_EVERYDAY.split())
# Not "me": "give me" and "tell me" ask for something of the world.
_OWN_WORDS = "my mine we us our ours ich mein meine wir unser je mon ma mes"
_OWN = frozenset(_OWN_WORDS.split())
_OWN_UNSPACED = ("我", "私", "僕")
# Nor "how do I": it asks how anybody does.
_HOW_DO_I = re.compile(r"\b(can|could|do|may|might|must|should|would) i\b")


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
    if not _OWN.isdisjoint(said) or any(each in message for each in _OWN_UNSPACED):
        return True
    return "i" in said and not _HOW_DO_I.search(" ".join(said))
