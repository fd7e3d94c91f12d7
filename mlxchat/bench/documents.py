"""What is answered about facts in a document that is larger than the window, for each way to read
it, and with the fact in view.

What is measured is how likely the model finds the right answer in a reply that begins as the fact
did.
"""

import io
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import ClassVar

from mlxchat.app.loaded import Loaded
from mlxchat.app.observer import Observer
from mlxchat.app.overflow import room_for_prompt
from mlxchat.app.passages import with_passages
from mlxchat.app.section_answers import SectionAnswers
from mlxchat.app.sections import SectionReader
from mlxchat.bench.answering import Answering, common
from mlxchat.bench.long_text import long_text
from mlxchat.bench.recall_reporting import REPORTING
from mlxchat.bench.recall_set import Fact
from mlxchat.bench.report import Chart, Point, Table, figure, series
from mlxchat.bench.subject import Subject
from mlxchat.models.model import Model
from mlxchat.passages.document import Document, open_documents
from mlxchat.passages.index import passing_index
from mlxchat.passages.search import Search
from mlxchat.request import Request, Setup
from mlxchat.settings import DEFAULT_KEEP, CacheSettings, Overflow, SamplingSettings
from mlxchat.text.documents import SEPARATOR
from mlxchat.text.spans import TokenIds

IN_VIEW = "fact in view"
WAYS = (str(Overflow.PASSAGES), str(Overflow.ROLL), IN_VIEW, str(Overflow.MAP))
# A longer text is not read in the rolling window, which would take an hour.
MAX_ROLLED_TOKENS = 110_000
QUIET = Observer(warn=lambda _: None, note=lambda _: None)
# The share of the room for a prompt that the text around a fact in view takes.
VIEW_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Amounts:
    """Sizes of the documents in windows, windows in tokens, and the number of facts asked for;
    `map` asks for fewer, in the smallest document only."""

    sizes: tuple[int, ...]
    windows: tuple[int, ...]
    facts: int
    map_facts: int


FULL = Amounts(sizes=(20, 200), windows=(512, 2_048), facts=100, map_facts=6)
QUICK = Amounts(sizes=(3,), windows=(1_024,), facts=3, map_facts=1)


@dataclass(frozen=True, slots=True)
class DocumentFigures:
    """One way to read one document of `tokens`. `answered` of `facts`: all tokens of the answer are
    the likeliest; `logprob` is the mean over facts of the answer's, `prompt_tokens` the mean of the
    prompts'; in `found` of them is the fact's statement. `search_ms` is the 95th percentile."""

    kind: ClassVar[str] = "documents"

    way: str
    tokens: int
    max_kv_size: int
    facts: int
    answered: int
    logprob: float
    found: int
    prompt_tokens: float
    search_ms: float


def measure(subject: Subject) -> Iterator[Sequence[DocumentFigures]]:
    amounts = QUICK if subject.quick else FULL
    facts = REPORTING.facts[: amounts.facts]
    parts = [
        (way, window, size)
        for window in amounts.windows
        for size in amounts.sizes
        for way in WAYS
        if (way != Overflow.MAP or (window, size) == (amounts.windows[0], amounts.sizes[0]))
        and (way != Overflow.ROLL or window * size <= MAX_ROLLED_TOKENS)
    ]
    found: list[DocumentFigures] = []
    done = 0
    for (window, size), ways in groupby(parts, key=lambda part: part[1:]):
        with closing(_Asked(subject.model, window, size, facts)) as asked:
            for way, *_ in ways:
                few = facts[: amounts.map_facts] if way == Overflow.MAP else facts
                label = f"{way}, {size} windows of {window:,} tokens"
                found.append(_figures(asked, way, few, _ticking(subject, done, len(parts), label)))
                done += 1
                yield found
    subject.tick(len(parts), len(parts), "")


def _ticking(subject: Subject, done: int, total: int, label: str) -> Callable[[], None]:
    return lambda: subject.tick(done, total, label)


class _Asked:
    """A document of `size` windows in which `facts` are, and the prompts about it."""

    def __init__(self, model: Model, window: int, size: int, facts: Sequence[Fact]) -> None:
        self.model = model
        self.window, self.size = window, size
        chars = _chars_per_token(model) * window * size
        self.text = long_text(facts, REPORTING.topics, int(chars))
        (self._document,) = open_documents([], io.BytesIO(self.text.encode()), QUIET.warn)
        self._index = passing_index([self._document], lambda done, total: None)
        self._search = Search([self._index])

    def close(self) -> None:
        self._index.close()
        self._document.close()

    @cached_property
    def tokens(self) -> int:
        return len(self.model.tokenizer.encode(self.text))

    @property
    def documents(self) -> list[Document]:
        return [self._document]

    @cached_property
    def loaded(self) -> Loaded:
        settings = CacheSettings(self.window)
        cache = self.model.make_cache(self.window, settings.keep)
        return Loaded("", self.model, settings, SamplingSettings(), cache)

    @cached_property
    def rolling(self) -> Answering:
        """The whole document in the rotating window."""
        some, others = (self._whole(question) for question in ("Who?", "Where?"))
        return Answering(self.model, some[: common(some, others)], self.window, DEFAULT_KEEP)

    @cached_property
    def prompting(self) -> Answering:
        some, others = (self._ids(text) for text in ("Who?", "Where?"))
        return Answering(self.model, some[: common(some, others)])

    def request(self, fact: Fact) -> Request:
        setup = Setup(prefix_cache=False, window=self.window)
        return Request(setup=setup, prompt=fact.question, overflow=Overflow.PASSAGES)

    def prompt(self, way: str, fact: Fact) -> TokenIds:
        if way == Overflow.PASSAGES:
            return with_passages(self.request(fact), self.documents, self.loaded, QUIET)[0].ids
        if way == Overflow.MAP:
            return self._read(fact)
        return self._in_view(fact) if way == IN_VIEW else self._whole(fact.question)

    def search_ms(self, fact: Fact) -> float:
        began_s = time.perf_counter()
        self._search.find(fact.question, len(self.text), lambda passage: len(passage.text))
        return 1e3 * (time.perf_counter() - began_s)

    def _read(self, fact: Fact) -> TokenIds:
        kept = SectionAnswers(None, lambda _: None)
        reader = SectionReader(self.request(fact), self.documents, self.loaded, kept)
        for _ in reader.read(lambda: False, lambda done, total: None):
            pass
        assert reader.prompt is not None
        return reader.prompt.ids

    def _in_view(self, fact: Fact) -> TokenIds:
        """The fact with as much of the text around it as there is room for."""
        room = room_for_prompt(self.request(fact), self.window) - len(self._ids(fact.question))
        chars = int(_chars_per_token(self.model) * room * VIEW_SHARE)
        place = self.text.index(fact.change or fact.statement)
        start = min(max(place - chars // 2, 0), max(len(self.text) - chars, 0))
        return self._ids(self.text[start : start + chars] + SEPARATOR + fact.question)

    def _whole(self, question: str) -> TokenIds:
        return self._ids(self.text + SEPARATOR + question)

    def _ids(self, text: str) -> TokenIds:
        return self.model.tokenizer.prompt(text).ids


def _chars_per_token(model: Model) -> float:
    sample = long_text((), REPORTING.topics, 10_000)
    return len(sample) / len(model.tokenizer.encode(sample))


def _figures(
    asked: _Asked, way: str, facts: Sequence[Fact], tick: Callable[[], None]
) -> DocumentFigures:
    answers: list[tuple[bool, float]] = []
    lengths: list[int] = []
    times_ms: list[float] = []
    found = 0
    for fact in facts:
        tick()
        prompt = asked.prompt(way, fact)
        if way == Overflow.PASSAGES:
            times_ms.append(asked.search_ms(fact))
        found += (fact.change or fact.statement) in asked.model.tokenizer.decode(prompt)
        lengths.append(len(prompt))
        answering = asked.rolling if way == Overflow.ROLL else asked.prompting
        answers.append(answering.answer(prompt, fact))
    return DocumentFigures(
        way=way,
        tokens=asked.tokens,
        max_kv_size=asked.window,
        facts=len(facts),
        answered=sum(answered for answered, _ in answers),
        logprob=statistics.mean(logprob for _, logprob in answers),
        # In a rolling window it is read, and forgotten.
        found=0 if way == Overflow.ROLL else found,
        prompt_tokens=statistics.mean(lengths),
        search_ms=statistics.quantiles(times_ms, n=20)[-1] if len(times_ms) > 1 else 0.0,
    )


def tables(found: Sequence[DocumentFigures]) -> Sequence[Table]:
    rows = [
        (
            f"{each.tokens:,}",
            str(each.max_kv_size),
            each.way,
            f"{each.answered} of {each.facts}",
            f"{each.logprob:.2f}",
            "" if each.way == Overflow.ROLL else str(each.found),
            figure(each.prompt_tokens),
            f"{each.search_ms:.2f}" if each.way == Overflow.PASSAGES else "",
        )
        for each in found
    ]
    headings = ("TOKENS", "WINDOW", "WAY", "ANSWERED", "LOGPROB", "FOUND", "PROMPT", "MS")
    return [
        Table(
            "Facts in long documents, asked for in other words",
            headings,
            tuple(rows),
            (
                "Answered: the answer's tokens are the likeliest in a reply that begins as the "
                "fact did. Found: the fact is in the prompt. Prompt: mean tokens. Ms: 95th "
                "percentile of a search.",
            ),
        )
    ]


def charts(found: Sequence[DocumentFigures]) -> Sequence[Chart]:
    points = [
        (
            each.way,
            Point.single(f"{each.tokens:,} / {each.max_kv_size}", 100 * each.answered / each.facts),
        )
        for each in found
    ]
    return [Chart("documents", "Facts answered", "", "percent", "bars", series(points))]
