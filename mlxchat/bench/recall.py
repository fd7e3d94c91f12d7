"""Whether a chat answers what has left its window: with recall, without, and with it in view.

Facts are planted in a long conversation and asked for in other words. Replies are canned; what is
measured is how likely the model finds the right answer in a reply that begins as the fact did.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mlxchat.bench.answering import Answering, common
from mlxchat.bench.recall_reporting import REPORTING
from mlxchat.bench.recall_set import Fact, RecallSet
from mlxchat.bench.report import Chart, Point, Table, figure, series
from mlxchat.bench.subject import Subject
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.memory import Memory
from mlxchat.chat.turn import Quoted, Recalled, Turn
from mlxchat.chat.turns import Turns
from mlxchat.models.model import Model
from mlxchat.request.chat import AUTO_RECALL
from mlxchat.settings import CacheSettings
from mlxchat.text.spans import TokenIds

WITH, WITHOUT, IN_VIEW = "with recall", "without", "fact in view"
EVERYTHING = "everything in view"
FILLERS = (
    "What is special about {}?",
    "Tell me something about the history of {}.",
    "How would you describe {} to a friend?",
)
REPLY = "Noted."


@dataclass(frozen=True, slots=True)
class Amounts:
    """Turns of each conversation, windows in tokens, and the number of facts asked for."""

    turns: tuple[int, ...]
    windows: tuple[int, ...]
    facts: int


FULL = Amounts(turns=(60, 200, 1_000), windows=(512, 2_048), facts=100)
QUICK = Amounts(turns=(60,), windows=(512,), facts=6)


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """One way in one conversation. `answered` of `facts`: all tokens of the answer are the
    likeliest; `logprob` is the mean over facts of the answer's. `wrong` of `unrelated` messages
    recalled something; `quote_tokens` is the mean of a quote's, `search_ms` the 95th percentile."""

    kind: ClassVar[str] = "recall"

    way: str
    turns: int
    max_kv_size: int | None
    facts: int
    answered: int
    logprob: float
    found: int
    quote_tokens: float
    unrelated: int
    wrong: int
    search_ms: float


def conversation(planted: RecallSet, length: int) -> tuple[list[Turn], dict[str, list[int]]]:
    """About `length` turns, and by a fact's statement the numbers of the turns that state and
    change it."""
    said = [(fact.statement, fact) for fact in planted.facts]
    said += [(fact.change, fact) for fact in planted.facts if fact.change]
    between = max(1, (length - len(said)) // len(said))
    turns: list[Turn] = []
    places: dict[str, list[int]] = {}
    for n, (text, fact) in enumerate(said):
        turns.append(Turn(text, REPLY, finish_reason="stop"))
        places.setdefault(fact.statement, []).append(len(turns))
        for m in range(between):
            topic = planted.topics[(n * between + m) % len(planted.topics)]
            filler = FILLERS[(n + m) % len(FILLERS)].format(topic)
            turns.append(Turn(filler, REPLY, finish_reason="stop"))
    return turns, places


def measure(subject: Subject) -> Iterator[Sequence[AnswerFigures]]:
    """Everything is in view only in a conversation that the model was trained for."""
    amounts = QUICK if subject.quick else FULL
    model, planted = subject.model, REPORTING
    facts = planted.facts[: amounts.facts]
    parts = [(length, window) for length in amounts.turns for window in (*amounts.windows, None)]
    found: list[AnswerFigures] = []
    for n, (length, window) in enumerate(parts):
        said, places = conversation(planted, length)
        label = EVERYTHING if window is None else f"a window of {window:,}"
        tick = _ticking(subject, n, len(parts), f"{length} turns, {label}")
        asked = _Asked.of(model, said, window)
        if window is None and not asked.fits_context:
            continue
        for way in (WITH, WITHOUT, IN_VIEW) if window is not None else (EVERYTHING,):
            found.append(_figures(asked, way, replace(planted, facts=facts), places, tick))
            yield found
    subject.tick(len(parts), len(parts), "")


def _ticking(subject: Subject, done: int, total: int, label: str) -> Callable[[], None]:
    return lambda: subject.tick(done, total, label)


@dataclass(slots=True)
class _Asked:
    """A conversation of which the window has forgotten the oldest turns."""

    model: Model
    turns: list[Turn]
    window: int | None
    memory: Memory
    answering: Answering | None = None

    @classmethod
    def of(cls, model: Model, said: Sequence[Turn], window: int | None) -> "_Asked":
        chat = Conversation(model, CacheSettings(window))
        chat.resume(None, [replace(turn) for turn in said])
        chat.turns.append(Turn("And now?"))
        list(chat.view.make_room(lambda *_: None))
        return cls(model, list(chat.turns[:-1]), window, Memory())

    @property
    def fits_context(self) -> bool:
        limit = self.model.context_length
        return limit is None or len(self.prompt("And now?", ())[0]) < limit

    def prompt(
        self, question: str, numbers: Sequence[int], in_view: Sequence[int] = ()
    ) -> tuple[TokenIds, int]:
        """The prompt, and how many of its tokens are a quote of the turns `numbers`. The turns
        `in_view` are said again in the middle of the window."""
        chat = Conversation(self.model, CacheSettings(self.window))
        turns = [replace(turn) for turn in self.turns]
        middle = len(turns) - sum(not turn.forgotten for turn in turns) // 2
        turns[middle:middle] = [replace(turns[n - 1], forgotten=False) for n in in_view]
        chat.resume(None, turns)
        chat.turns.append(Turn(question))
        quoted = [Quoted(turns[number - 1], number) for number in numbers]
        yielded = list(chat.view.make_room(lambda *_: None, lambda: quoted))
        return chat.view.prompt, sum(e.tokens for e in yielded if isinstance(e, Recalled))

    def search(self, message: str) -> tuple[list[int], float]:
        """The turns that would be recalled, and the milliseconds of the search."""
        turns = Turns()
        turns.become([*self.turns, Turn(message)])
        began_s = time.perf_counter()
        numbers = self.memory.find(message, turns, AUTO_RECALL)
        return numbers, 1e3 * (time.perf_counter() - began_s)

    def answer(self, prompt: TokenIds, fact: Fact) -> tuple[bool, float]:
        if self.answering is None:
            some, others = (self.prompt(text, ())[0] for text in ("And now?", "So what?"))
            self.answering = Answering(self.model, some[: common(some, others)])
        return self.answering.answer(prompt, fact)


def _figures(
    asked: _Asked,
    way: str,
    planted: RecallSet,
    places: dict[str, list[int]],
    tick: Callable[[], None],
) -> AnswerFigures:
    answers: list[tuple[bool, float]] = []
    quotes: list[int] = []
    times_ms: list[float] = []
    found = wrong = 0
    for fact in planted.facts:
        tick()
        numbers: list[int] = []
        in_view = places[fact.statement] if way == IN_VIEW else ()
        if way == WITH:
            numbers, took_ms = asked.search(fact.question)
            times_ms.append(took_ms)
            found += {*places[fact.statement]} <= {*numbers}
        prompt, tokens = asked.prompt(fact.question, numbers, in_view)
        quotes += [tokens] if tokens else []
        answers.append(asked.answer(prompt, fact))
    unrelated = planted.unrelated if way == WITH else ()
    for message in unrelated:
        numbers, took_ms = asked.search(message)
        times_ms.append(took_ms)
        wrong += bool(numbers)
    return AnswerFigures(
        way=way,
        turns=len(asked.turns),
        max_kv_size=asked.window,
        facts=len(planted.facts),
        answered=sum(answered for answered, _ in answers),
        logprob=statistics.mean(logprob for _, logprob in answers),
        found=found,
        quote_tokens=statistics.mean(quotes) if quotes else 0.0,
        unrelated=len(unrelated),
        wrong=wrong,
        # The first search also indexes the turns, which a chat does as it forgets them.
        search_ms=statistics.quantiles(times_ms[1:], n=20)[-1] if len(times_ms) > 2 else 0.0,
    )


def tables(found: Sequence[AnswerFigures]) -> Sequence[Table]:
    rows = [
        (
            str(each.turns),
            "" if each.max_kv_size is None else str(each.max_kv_size),
            each.way,
            f"{each.answered} of {each.facts}",
            f"{each.logprob:.2f}",
            *(_searched(each) if each.way == WITH else ("", "", "", "")),
        )
        for each in found
    ]
    headings = ("TURNS", "WINDOW", "WAY", "ANSWERED", "LOGPROB", "FOUND", "WRONG", "QUOTE", "MS")
    return [
        Table(
            "Facts that were said long ago, asked for in other words",
            headings,
            tuple(rows),
            (
                "Answered: the answer's tokens are the likeliest in a reply that begins as the "
                "fact did. Found: the right turns were recalled. Wrong: messages that need "
                "nothing, and recalled something. Quote: mean tokens. Ms: 95th percentile of a "
                "search.",
            ),
        )
    ]


def _searched(each: AnswerFigures) -> tuple[str, str, str, str]:
    return (
        str(each.found),
        f"{each.wrong} of {each.unrelated}",
        figure(each.quote_tokens),
        f"{each.search_ms:.2f}",
    )


def charts(found: Sequence[AnswerFigures]) -> Sequence[Chart]:
    points = [
        (each.way, Point.single(f"{each.turns} turns", 100 * each.answered / each.facts))
        for each in found
    ]
    return [Chart("recall", "Facts answered", "", "percent", "bars", series(points))]
