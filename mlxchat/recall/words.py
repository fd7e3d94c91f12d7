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
# frequency; this list is for the first turns, when every word is rare. Words that mean
# something in English, such as Dutch "van", are left out.
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
    "nicht kein habe hat bin sind mit auf von dem den pas ne ai suis en dans pour avec sur ce "
    "el los las una es qué cual cuál cuándo dónde quién más para su se del mi mis "
    "um uma é qual quando onde quem do da em meu minha "
    "de het een waar wanneer welk welke naar met voor ik dat mijn onze "
    "il gli è quale nel nella mio mia "
    # Without their apostrophes.
    "cant didnt doesnt dont hows im isnt ive thats whats wheres whos wont"
)
EMPTY_WORDS = frozenset(_EMPTY.split())
# Words of everyday talk, and of what is asked for: "the name", "what kind". Beside another word
# they say something; alone, they are shared by chance.
_EVERYDAY = (
    "able affect agree agreed allow allowed amount answer answered answers asking back bad "
    "become began begin begins believe better big bigger bit brand bring buy carry case cases "
    "change changed cheap check choose chose clear close cold color colour come comes common "
    "continue continued correct cost costs course create cut date days dear decide decided "
    "different difficult doing done earlier early easier easy effect end ends enjoy enjoyed "
    "even evening ever everyone everything exactly example examples expect fact fail fall far "
    "fast faster feel feels felt fill find finding finds fine finish first fix follow forget "
    "forgot forgotten formal found full fun funny get gets getting glad goes going gone got "
    "great happen happened happens happy hard harder hate hear heard help helped helps here "
    "hi high higher hold hope hot hour hours idea ideas imagine important improve include "
    "including interesting just keep keeps kind kinds know knowing known knows large larger "
    "last late later laugh learn learned learning leave leaves left less light liked likes "
    "line lines listen little live lived lives living longer look looked looking looks lose "
    "lost lot love low lower made main makes manage matter maybe means meet mention mentioned "
    "message messages mind minute minutes miss mistake model month months morning move name "
    "named names natural needed needs never newer next nice night note nothing notice number "
    "numbers often ok okay old older once only open option options order other others paid "
    "paragraph part parts pay people perfect pick place places plan planned planning play "
    "played playing plays point points polite possible prefer prepare prepared pretty price "
    "problem problems profession question questions quick quickly quite reach read reading "
    "really reason reasons receive recommend recommended remains remove rest rich right rule "
    "rules run runs safe same save saying says second seem seems send sense sentence "
    "sentences serious set several share short shorter simple simply since sit size skip "
    "sleep slow slowly small smaller someone something sometimes soon sorry sort sound "
    "sounded sounds speak special spend stand start started starts stay step steps stop "
    "stopped stories story strange strong stuff support suppose supposed sure talk talks "
    "teach text think thinking thinks thought three time times tip tips tired title titles "
    "today together tomorrow tonight top topic total true try turn turned turns two type "
    "types typical understand understands understood useful using usual usually visit wait "
    "walk want wanted wants watch way ways wear week weeks weird welcome whole win wish "
    "wonder word words work worked working works world worried worry worth writing written "
    "wrong year years yesterday young younger "
    "another dozen eight five four half hundred nine seven six ten things thousand twelve twenty"
)
EVERYDAY_WORDS = frozenset(_EVERYDAY.split())
# Named in many texts that have nothing else in common.
_CALENDAR = (
    "monday tuesday wednesday thursday friday saturday sunday january february march april may "
    "june july august september october november december"
)
CALENDAR_WORDS = frozenset(_CALENDAR.split())
# Not "me": "give me" and "tell me" ask for something of the world.
_OWN_WORDS = (
    "my mine we us our ours ich mein meine wir unser je mon ma mes "
    "mi mis nuestro nuestra meu minha ik mijn onze mio mia nostro nostra"
)
_OWN = frozenset(_OWN_WORDS.split())
_OWN_UNSPACED = ("我", "私", "僕")
# Nor "how do I" and "where can I": they ask what anybody does. "How much do I weigh?" does not.
_AS_ANYBODY = re.compile(r"\b(how|what) do i\b|\b(can|could|may|might|must|should|would) i\b")
# Before the kind of thing that is asked for: "which city", "welche Stadt".
_ASKS_KIND = (
    "what which welche welchem welchen welcher welches quel quelle quels quelles qué cuál que qual "
    "welk welke quale"
)
_ASKING_KIND = frozenset(_ASKS_KIND.split())


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
    return {word for asking, word in pairwise(words(message)) if asking in _ASKING_KIND}


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
    return "i" in said and not _AS_ANYBODY.search(" ".join(said))
