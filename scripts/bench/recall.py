"""Facts planted among forgotten turns and asked for in other words.

    python -m scripts.bench.recall search     # what a chat would quote; no model runs
    python -m scripts.bench.recall answers    # what the model answers with recall, without, in view

search plants them among short turns, then among sentences and pages of Python's own documentation.
`wrong` counts unrelated messages that recall something.
"""

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pydoc_data.topics import topics

from scripts.bench.common import parser, show
from scripts.bench.facts import LONG, SHORT, TOPICS, UNRELATED, Answering, Fact

# isort: split


from mlxchat.chat.conversation import Conversation
from mlxchat.chat.memory import Memory
from mlxchat.chat.state import Recalled, State, Turn
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.recall.choice import sentences
from mlxchat.request.commands import MOST_RECALLS
from mlxchat.settings import CacheSettings
from mlxchat.text.encoder import TokenIds

FILLERS = (
    "What is special about {}?",
    "Tell me something about the history of {}.",
    "How would you describe {} to a friend?",
)
WORDS_OF_A_SENTENCE, WORDS_OF_A_PAGE = 4, 200


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("what", choices=("search", "answers"))
    options = options_of.parse_args()
    if options.what == "search":
        search(quick=options.quick)
    else:
        answers(load(options.model, offline=True), quick=options.quick)


def conversation(length: int) -> tuple[list[Turn], dict[str, list[int]]]:
    """About `length` turns, and by a fact's statement the numbers of the turns that state and
    change it."""
    said = [(fact.statement, fact) for fact in SHORT]
    said += [(fact.change, fact) for fact in SHORT if fact.change]
    between = max(1, (length - len(said)) // len(said))
    turns: list[Turn] = []
    places: dict[str, list[int]] = {}
    for n, (text, fact) in enumerate(said):
        turns.append(Turn(text, "Noted.", finish_reason="stop"))
        places.setdefault(fact.statement, []).append(len(turns))
        for m in range(between):
            filler = FILLERS[(n + m) % len(FILLERS)].format(TOPICS[(n * between + m) % len(TOPICS)])
            turns.append(Turn(filler, "Noted.", finish_reason="stop"))
    return turns, places


class Searched:
    """Searches turns of which some are forgotten, and times it."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns, self._memory = turns, Memory()
        self._times_s: list[float] = []

    def find(self, message: str) -> list[int]:
        state = State(turns=(*self._turns, Turn(message)))
        began_s = time.perf_counter()
        numbers = self._memory.find(message, state, MOST_RECALLS)
        self._times_s.append(time.perf_counter() - began_s)
        return numbers

    def wrong(self) -> int:
        return sum(bool(self.find(message)) for message in UNRELATED)

    @property
    def p95_ms(self) -> float:
        # The first search also indexes the turns, which a chat does as it forgets them.
        return 1e3 * statistics.quantiles(self._times_s[1:], n=20)[-1]


def search(*, quick: bool) -> None:
    # The rules of recall were tuned on the other half.
    text = "\n".join(topics[name] for name in sorted(topics)[1::2])
    for among, lengths, fillers in (
        ("short turns", (60, 200, 1_000), []),
        ("sentences", (200, 1_000), shuffled(single(text))),
        ("pages", (60, 200), shuffled(pages(text))),
    ):
        for length in lengths[:1] if quick else lengths:
            search_among(among, length, fillers)


def search_among(among: str, length: int, fillers: Sequence[str]) -> None:
    """Facts in long sentences come last."""
    said, places = conversation(length)
    if fillers:
        stated = {turn for numbers in places.values() for turn in numbers}
        texts = iter(fillers)
        said = [
            turn if number in stated else replace(turn, user=next(texts))
            for number, turn in enumerate(said, 1)
        ]
    first_long = len(said) + 1
    said += [Turn(statement, "Noted.") for statement, _ in LONG]
    searched = Searched([replace(turn, forgotten=True) for turn in said])
    show(
        bench="recall",
        among=among,
        turns=len(said),
        facts=len(SHORT),
        found=sum({*places[each.statement]} <= {*searched.find(each.question)} for each in SHORT),
        long_facts=len(LONG),
        found_long=sum(
            number in searched.find(question)
            for number, (_, question) in enumerate(LONG, first_long)
        ),
        unrelated=len(UNRELATED),
        wrong=searched.wrong(),
        search_p95_ms=searched.p95_ms,
    )


def single(text: str) -> list[str]:
    return [each for each in sentences(text) if len(each.split()) >= WORDS_OF_A_SENTENCE]


def pages(text: str) -> list[str]:
    words = text.split(" ")
    starts = range(0, len(words), WORDS_OF_A_PAGE)
    return [" ".join(words[start : start + WORDS_OF_A_PAGE]) for start in starts]


def shuffled(parts: Sequence[str]) -> list[str]:
    return random.Random(0).sample(parts, len(parts))


def answers(model: Model, *, quick: bool) -> None:
    """Replies are canned; what is measured is how likely the model finds the right answer."""
    facts = SHORT[:6] if quick else SHORT
    for length in (60,) if quick else (60, 200, 1_000):
        for window in (512,) if quick else (512, 2_048):
            said, places = conversation(length)
            asked = Asked(model, said, window)
            for way in ("with recall", "without", "fact in view"):
                answer(asked, way, facts, places)


class Asked:
    """A conversation of which the window has forgotten the oldest turns."""

    def __init__(self, model: Model, said: Sequence[Turn], window: int) -> None:
        self.window, self._model = window, model
        chat = Conversation(model, CacheSettings(window))
        chat.resume(State(turns=tuple(said)))
        chat.say("And now?")
        assert chat.answering is not None
        list(chat.answering.make_room())
        self.turns = list(chat.answering.state.turns[:-1])
        some, others = (self.prompt(text)[0] for text in ("And now?", "So what?"))
        self.answering = Answering(model, some, others)

    def prompt(
        self, question: str, recalled: Sequence[int] = (), in_view: Sequence[int] = ()
    ) -> tuple[TokenIds, int]:
        """The prompt, and how many of its tokens are a quote of the turns `recalled`. The turns
        `in_view` are said again in the middle of the window."""
        chat = Conversation(self._model, CacheSettings(self.window))
        turns = list(self.turns)
        middle = len(turns) - sum(not turn.forgotten for turn in turns) // 2
        turns[middle:middle] = [replace(turns[n - 1], forgotten=False) for n in in_view]
        chat.resume(State(turns=tuple(turns)))
        chat.say(question)
        assert chat.answering is not None
        chat.answering.recall = lambda _: recalled
        yielded = list(chat.answering.make_room())
        return chat.answering.prompt, sum(e.tokens for e in yielded if isinstance(e, Recalled))


def answer(asked: Asked, way: str, facts: Sequence[Fact], places: dict[str, list[int]]) -> None:
    searched = Searched(asked.turns)
    found: list[tuple[bool, float]] = []
    quotes: list[int] = []
    for fact in facts:
        recalled = searched.find(fact.question) if way == "with recall" else []
        in_view = places[fact.statement] if way == "fact in view" else []
        prompt, quote = asked.prompt(fact.question, recalled, in_view)
        quotes += [quote] if quote else []
        found.append(asked.answering.answer(prompt, fact))
    show(
        bench="recall",
        way=way,
        turns=len(asked.turns),
        max_kv_size=asked.window,
        facts=len(facts),
        answered=sum(answered for answered, _ in found),
        logprob=statistics.mean(logprob for _, logprob in found),
        quote_tokens=statistics.mean(quotes or [0]),
        wrong=searched.wrong() if way == "with recall" else 0,
    )


if __name__ == "__main__":
    main()
