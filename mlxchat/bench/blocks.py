"""The time that blocks save, and their cost in quality. Joins documents in every order and compares
with ordinary prefill of the same tokens: the time to the first token, the predictions of a
question's tokens, and whether the model still knows facts planted in the documents.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np

from mlxchat.bench.paired import Spread, ratios, settle
from mlxchat.bench.report import Chart, Point, Table, figure, middle, range_of, series
from mlxchat.bench.subject import Subject
from mlxchat.cache import Cache, make_cache
from mlxchat.engine.blocks import BlockReader
from mlxchat.engine.loops import prefill
from mlxchat.models.model import Model
from mlxchat.store.block_store import DiskBlocks
from mlxchat.text.parts import Part, encode_parts
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import Prompt

LIMIT_BYTES = 1 << 40
STEP = 512
MAX_TEXT_TOKENS = 60_000
SYSTEM = "Answer questions about the documents."

PREFILL, BLOCKS = "prefill", "blocks"

THINGS = ("lantern", "anchor", "ladder", "kettle", "saddle", "mirror", "basket", "hammer")
PLACES = ("Ostrava", "Milbrook", "Tarsin", "Velden")
COLOURS = ("crimson", "silver", "purple", "copper", "golden", "orange", "violet")


@dataclass(frozen=True, slots=True)
class Amounts:
    """Tokens per document and question; how many orders of the documents to measure, and in how
    many of them to ask for the facts."""

    document: int
    question: int
    orders: int
    fact_orders: int
    facts: int


FULL = Amounts(document=800, question=200, orders=24, fact_orders=6, facts=30)
QUICK = Amounts(document=160, question=40, orders=2, fact_orders=1, facts=4)
DOCUMENTS = 4


@dataclass(frozen=True, slots=True)
class FirstFigures:
    """Seconds to the first token before any block is stored."""

    kind: ClassVar[str] = "first"

    prompt_tokens: int
    ttft_s: float


@dataclass(frozen=True, slots=True)
class OrderFigures:
    """One order of the documents, with all blocks stored: seconds to the first token, and how the
    predictions of the question's tokens differ from those after ordinary prefill: mean
    Kullback-Leibler divergence in nats, and how often the likeliest token is the same."""

    kind: ClassVar[str] = "order"

    order: tuple[int, ...]
    ttft_s: float
    prefill_ttft_s: float
    kl: float
    top1: float


@dataclass(frozen=True, slots=True)
class FactFigures:
    """Mean natural log-probability of the answers about the planted facts."""

    kind: ClassVar[str] = "facts"

    order: tuple[int, ...]
    read_as: str
    logprob: float
    without_documents: float


Found = FirstFigures | OrderFigures | FactFigures


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence that states a fact, and the question for it."""

    thing: str
    place: str
    colour: str

    @property
    def question(self) -> str:
        return f"What colour is the {self.thing} of {self.place}?"

    @property
    def opening(self) -> str:
        return f"The {self.thing} of {self.place} is"

    @property
    def sentence(self) -> str:
        return f"{self.opening} {self.colour}."


def measure(subject: Subject) -> Iterator[Sequence[Found]]:
    """Raises CacheError if blocks of this model cannot be joined."""
    amounts = QUICK if subject.quick else FULL
    run = _Run(subject, amounts)
    found: list[Found] = []
    for each in run.all():
        found.append(each)
        yield found


class _Run:
    """The documents, the questions, and the stored blocks."""

    def __init__(self, subject: Subject, amounts: Amounts) -> None:
        self.subject = subject
        self.amounts = amounts
        self.model: Model = subject.model
        self.facts = _facts(amounts.facts)
        ids = subject.text_ids((DOCUMENTS + 1) * amounts.document, MAX_TEXT_TOKENS)
        # Far apart, so that no document continues another.
        starts = np.linspace(0, len(ids) - amounts.document, DOCUMENTS + 1).astype(int)
        texts = [self._decoded(ids[start : start + amounts.document]) for start in starts]
        self.question = self._decoded(ids[starts[-1] :][: amounts.question])
        self.documents = [
            _planted(text, self.facts[n::DOCUMENTS]) for n, text in enumerate(texts[:DOCUMENTS])
        ]

    def all(self) -> Iterator[Found]:
        orders = list(itertools.permutations(range(DOCUMENTS)))[: self.amounts.orders]
        directory = self.subject.scratch / "blocks"
        blocks = DiskBlocks(directory, self.model, LIMIT_BYTES)
        without = statistics.fmean(self._fact_logprobs(self._no_documents()))
        try:
            for n, order in enumerate(orders):
                say = self._say(n, len(orders))
                if n == 0:
                    say("no blocks stored")
                    prompt = self._prompt(order, self.facts[0].question)
                    _, taken_s = self._read(prompt, BlockReader(prompt, blocks))
                    yield FirstFigures(len(prompt.ids), taken_s)
                yield from self._one_order(
                    order, blocks, say, n < self.amounts.fact_orders, without
                )
            self.subject.tick(1, 1, "")
        finally:
            blocks.close()

    def _one_order(
        self,
        order: tuple[int, ...],
        blocks: DiskBlocks,
        say: Callable[[str], None],
        ask_facts: bool,
        without: float,
    ) -> Iterator[Found]:
        prompt = self._prompt(order, self.facts[0].question)
        say(PREFILL)
        prefilled, prefill_s = self._read(prompt, prefill)
        say(BLOCKS)
        joined, joined_s = self._read(prompt, BlockReader(prompt, blocks))
        kl, top1 = _compared(self._expected(prefilled, order), self._expected(joined, order))
        yield OrderFigures(order, joined_s, prefill_s, kl, top1)
        if ask_facts:
            for read_as, cache in ((PREFILL, prefilled), (BLOCKS, joined)):
                logprob = statistics.fmean(self._fact_logprobs(cache))
                yield FactFigures(order, read_as, logprob, without)

    def _say(self, done: int, orders: int) -> Callable[[str], None]:
        return lambda doing: self.subject.tick(done, orders, f"order {done + 1}: {doing}")

    def _prompt(self, order: Sequence[int], question: str) -> Prompt:
        parts = [Part(f"{self.documents[n]}\n\n", cache=True) for n in order]
        raw = self.model.tokenizer.template is None
        system = None if raw else SYSTEM
        return encode_parts(self.model.tokenizer, [*parts, Part(question)], system, raw=raw)

    def _read(self, prompt: Prompt, read: Callable[..., int]) -> tuple[Cache, float]:
        """The cache after the documents, and the seconds to the first token of the answer."""
        settle()
        network = self.model.network
        behind_documents = prompt.blocks[-1][1]
        cache = make_cache(network)
        started_s = time.perf_counter()
        read(network, cache, prompt.ids[:behind_documents], step_size=STEP)
        asked = cache.fork()
        logits = network(mx.array(prompt.ids[behind_documents:])[None], cache=asked)[0, -1]
        mx.eval(mx.argmax(logits))
        return cache, time.perf_counter() - started_s

    def _no_documents(self) -> Cache:
        prompt = self._prompt(range(DOCUMENTS), "")
        cache = self.model.make_cache()
        prefill(self.model.network, cache, prompt.ids[: prompt.head], step_size=STEP)
        return cache

    def _expected(self, cache: Cache, order: Sequence[int]) -> mx.array:
        """Log-probabilities `(T, V)` after each of the question's tokens."""
        ids = self._after_documents(order, self.question)[: self.amounts.question]
        return self._logprobs(cache, ids)

    def _after_documents(self, order: Sequence[int], question: str) -> TokenIds:
        prompt = self._prompt(order, question)
        return prompt.ids[prompt.blocks[-1][1] :]

    def _logprobs(self, cache: Cache, ids: TokenIds) -> mx.array:
        logits = self.model.network(mx.array(ids)[None], cache=cache.fork())[0]
        logits = logits.astype(mx.float32)
        return logits - mx.logsumexp(logits, axis=-1, keepdims=True)

    def _fact_logprobs(self, cache: Cache) -> list[float]:
        """Of each fact's colour, after the question for it and the start of the answer."""
        found: list[float] = []
        tokenizer = self.model.tokenizer
        for fact in self.facts:
            asked = self._after_documents(range(DOCUMENTS), fact.question)
            opening = tokenizer.encode(fact.opening)
            answer = tokenizer.encode(f"{fact.opening} {fact.colour}")[len(opening) :]
            ids = np.concatenate([asked, opening, answer])
            rows = self._logprobs(cache, ids)[-len(answer) - 1 : -1]
            picked = mx.take_along_axis(rows, mx.array(answer)[:, None], axis=-1)
            total: Any = picked.sum().item()
            found.append(total)
        return found

    def _decoded(self, ids: TokenIds) -> str:
        return self.model.tokenizer.decode(ids.tolist()).strip()


def _facts(count: int) -> list[Fact]:
    pairs = list(itertools.product(PLACES, THINGS))[:count]
    return [Fact(thing, place, COLOURS[n % 7]) for n, (place, thing) in enumerate(pairs)]


def _planted(text: str, facts: Sequence[Fact]) -> str:
    """The text with the facts' sentences inserted between words, at equal distances."""
    words = text.split(" ")
    cuts = np.linspace(0, len(words), len(facts) + 2).astype(int)
    pieces = [" ".join(words[a:b]) for a, b in itertools.pairwise(cuts)]
    sentences = [fact.sentence for fact in facts]
    mixed = itertools.chain.from_iterable(itertools.zip_longest(pieces, sentences))
    return " ".join(each for each in mixed if each)


def _compared(full: mx.array, other: mx.array) -> tuple[float, float]:
    """Mean KL divergence of `other` from `full`, both `(T, V)`, and the share of rows with the
    same likeliest token."""
    kl: Any = (mx.exp(full) * (full - other)).sum(axis=-1).mean().item()
    same: Any = (mx.argmax(full, axis=-1) == mx.argmax(other, axis=-1)).mean().item()
    return kl, same


def tables(found: Sequence[Found]) -> Sequence[Table]:
    first = [each for each in found if isinstance(each, FirstFigures)]
    orders = {each.order for each in found if isinstance(each, OrderFigures)}
    notes = [
        f"With no blocks stored, the first token of {each.prompt_tokens:,} took "
        f"{figure(each.ttft_s)} s."
        for each in first
    ]
    without = [each.without_documents for each in found if isinstance(each, FactFigures)]
    if without:
        notes.append(f"Without the documents, the answers' log-probability is {without[0]:.2f}.")
    return [
        Table(
            f"{DOCUMENTS} documents joined as blocks, in {len(orders)} orders, compared with "
            "ordinary prefill; medians of seconds to the first token, means of the rest",
            ("READ AS", "TTFT S", "RATIO", "RANGE", "KL", "WORST KL", "TOP-1", "ANSWERS' LOGPROB"),
            _rows(found),
            tuple(notes),
        )
    ]


def _rows(found: Sequence[Found]) -> tuple[tuple[str, ...], ...]:
    orders = [each for each in found if isinstance(each, OrderFigures)]
    if not orders:
        return ()
    prefill_s = [each.prefill_ttft_s for each in orders]
    joined_s = [each.ttft_s for each in orders]
    ratio = ratios(joined_s, prefill_s)
    return (
        (
            PREFILL,
            middle(Spread.of(prefill_s)),
            "1",
            "",
            "0",
            "0",
            "100%",
            _logprob(found, PREFILL),
        ),
        (
            BLOCKS,
            middle(Spread.of(joined_s)),
            middle(ratio),
            range_of(ratio),
            figure(statistics.fmean(each.kl for each in orders)),
            figure(max(each.kl for each in orders)),
            f"{statistics.fmean(each.top1 for each in orders):.1%}",
            _logprob(found, BLOCKS),
        ),
    )


def _logprob(found: Sequence[Found], read_as: str) -> str:
    facts = [
        each.logprob for each in found if isinstance(each, FactFigures) and each.read_as == read_as
    ]
    return f"{statistics.fmean(facts):.2f}" if facts else ""


def charts(found: Sequence[Found]) -> Sequence[Chart]:
    orders = [each for each in found if isinstance(each, OrderFigures)]
    if not orders:
        return []
    points = [
        ("ordinary prefill", Point.of("", Spread.of([each.prefill_ttft_s for each in orders]))),
        ("blocks", Point.of("", Spread.of([each.ttft_s for each in orders]))),
    ]
    title = "Documents joined as blocks"
    return [Chart("blocks", title, "", "seconds to the first token", "bars", series(points))]
