"""What the prefix cache saves, the wait for an answer about a document read before, and what it
costs: disk space, and the time to look up a prompt among many with the same beginning.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mlxchat.bench.paired import Spread, ratios, settle
from mlxchat.bench.report import Chart, Point, Table, figure, middle, range_of, series
from mlxchat.bench.subject import Subject
from mlxchat.bench.tiny import tiny_config, with_tiny_network
from mlxchat.engine.generate import Generation
from mlxchat.engine.loops import prefill
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings
from mlxchat.store.prefix_cache import PAGE, PrefixCache
from mlxchat.store.prefix_index import page_keys
from mlxchat.text.spans import TokenIds

LIMIT_BYTES = 1 << 40
STEP = 512
WARM_UP_TOKENS = 64
QUESTIONS = ("Who is spoken of first?", "What was made on the third day?", "Who was afraid?")
SHARED_TOKENS, OWN_TOKENS, BEGINNINGS = 2_048, 512, 10
READS, LOOK_UPS = 3, 20
PLAIN, KNOWN = "without", "with"


@dataclass(frozen=True, slots=True)
class Amounts:
    """Tokens of the document; number of prompts that share beginnings, and when to look up."""

    document: int
    prompts: int
    looks: tuple[int, ...]


FULL = Amounts(document=4_000, prompts=1_000, looks=(10, 100, 1_000))
QUICK = Amounts(document=600, prompts=20, looks=(10, 20))


@dataclass(frozen=True, slots=True)
class QuestionFigures:
    """Seconds to the first token of a question about the document, without and with the prefix
    cache, which is empty before the first one."""

    kind: ClassVar[str] = "question"

    question: int
    prompt_tokens: int
    known_tokens: int
    plain_ttft_s: float
    known_ttft_s: float


@dataclass(frozen=True, slots=True)
class DiskFigures:
    """Disk space of the document, and how fast it is read back."""

    kind: ClassVar[str] = "disk"

    stored_tokens: int
    bytes_per_token: float
    read_back_tokens_per_s: Spread


@dataclass(frozen=True, slots=True)
class TrieFigures:
    """After a number of prompts of 2,560 tokens on a tiny network, each tenth of which shares its
    first 2,048: bytes stored, bytes without sharing, time of a look-up."""

    kind: ClassVar[str] = "trie"

    prompts: int
    pages: int
    page_tokens: int
    stored_bytes: int
    apart_bytes: int
    look_up_s: Spread


def measure(subject: Subject) -> Iterator[Sequence[QuestionFigures | DiskFigures | TrieFigures]]:
    amounts = QUICK if subject.quick else FULL
    found: list[QuestionFigures | DiskFigures | TrieFigures] = []
    for part in (_questions(subject, amounts), _trie(subject, amounts)):
        for figures in part:
            found.append(figures)
            yield found


def _questions(subject: Subject, amounts: Amounts) -> Iterator[QuestionFigures | DiskFigures]:
    model = subject.model
    text = subject.text_ids(amounts.document, amounts.document)
    document = model.tokenizer.decode(text.tolist())
    prompts = [model.tokenizer.prompt(f"{document}\n\n{each}").ids for each in QUESTIONS]
    _ask(model, None, prompts[0][:WARM_UP_TOKENS])
    directory = subject.scratch / "questions"
    prefixes = PrefixCache(directory, model, LIMIT_BYTES)
    try:
        for n, ids in enumerate(prompts):
            subject.tick(2 * n, 2 * len(prompts), f"question {n + 1} without the prefix cache")
            plain_s, _ = _ask(model, None, ids)
            subject.tick(2 * n + 1, 2 * len(prompts), f"question {n + 1} with it")
            known_s, known = _ask(model, prefixes, ids)
            yield QuestionFigures(n + 1, len(ids), known, plain_s, known_s)
    finally:
        prefixes.close()
    yield _on_disk(model, directory, prompts[-1])


def _ask(model: Model, prefixes: PrefixCache | None, ids: TokenIds) -> tuple[float, int]:
    """Seconds to the first token, and how many of the prompt's tokens were cached."""
    settle()
    cache = model.make_cache()
    started_s = time.perf_counter()
    cached = 0 if prefixes is None else prefixes.fill(cache, ids, None)
    how: dict[str, Any] = {"settings": GenerationSettings(max_tokens=1), "prefill_step_size": STEP}
    if prefixes is not None:
        how["on_held"] = prefixes.recorder(cache, ids, cached, None)
    next(iter(Generation(model, ids, cache, cached_tokens=cached, **how)))
    return time.perf_counter() - started_s, cached


def _on_disk(model: Model, directory: Path, ids: TokenIds) -> DiskFigures:
    pages = list(directory.rglob("*.safetensors"))
    prefixes = PrefixCache(directory, model, LIMIT_BYTES)
    rates: list[float] = []
    known = 0
    for _ in range(READS):
        cache = model.make_cache()
        started_s = time.perf_counter()
        known = prefixes.fill(cache, ids, None)
        rates.append(known / (time.perf_counter() - started_s))
    prefixes.close()
    stored_bytes = sum(page.stat().st_size for page in pages)
    tokens = max(len(pages) * PAGE, 1)
    return DiskFigures(tokens, stored_bytes / tokens, Spread.of(rates))


def _trie(subject: Subject, amounts: Amounts) -> Iterator[TrieFigures]:
    model = with_tiny_network(subject.model, tiny_config(layers=1))
    random = np.random.default_rng(0)
    beginnings = random.integers(0, 256, (BEGINNINGS, SHARED_TOKENS)).astype(np.int32)
    store = subject.scratch / "prefixes"
    prefixes = PrefixCache(store, model, LIMIT_BYTES)
    try:
        for number in range(1, amounts.prompts + 1):
            subject.tick(number - 1, amounts.prompts, "prompts that begin alike")
            own = random.integers(0, 256, OWN_TOKENS).astype(np.int32)
            # The last token is not prefilled, as in a generation.
            ids = np.concatenate([beginnings[number % BEGINNINGS], own, own[:1]])
            cache = model.make_cache()
            cached = prefixes.fill(cache, ids, None)
            record = prefixes.recorder(cache, ids, cached, None)
            prefill(model.network, cache, ids[cached:-1], step_size=STEP, on_held=record)
            if number in amounts.looks:
                # Wait until everything is on the disk.
                prefixes.close()
                prefixes = PrefixCache(store, model, LIMIT_BYTES)
                yield _look_up(store, prefixes, ids, number)
    finally:
        prefixes.close()
    subject.tick(amounts.prompts, amounts.prompts, "")


def _look_up(store: Path, prefixes: PrefixCache, ids: TokenIds, prompts: int) -> TrieFigures:
    sizes = [each.stat().st_size for each in store.rglob("*.safetensors")]
    taken_s: list[float] = []
    for _ in range(LOOK_UPS):
        started_s = time.perf_counter()
        prefixes.index.chain(page_keys(prefixes._print, ids, PAGE))
        taken_s.append(time.perf_counter() - started_s)
    pages_apart = prompts * (SHARED_TOKENS + OWN_TOKENS) // PAGE
    return TrieFigures(
        prompts=prompts,
        pages=len(sizes),
        page_tokens=PAGE,
        stored_bytes=sum(sizes),
        apart_bytes=round(pages_apart * statistics.fmean(sizes)),
        look_up_s=Spread.of(taken_s),
    )


def tables(found: Sequence[QuestionFigures | DiskFigures | TrieFigures]) -> Sequence[Table]:
    asked = [each for each in found if isinstance(each, QuestionFigures)]
    disk = [each for each in found if isinstance(each, DiskFigures)]
    trie = [each for each in found if isinstance(each, TrieFigures)]
    return [
        *([_question_table(asked, disk)] if asked else []),
        *([_trie_table(trie)] if trie else []),
    ]


def _question_table(asked: Sequence[QuestionFigures], disk: Sequence[DiskFigures]) -> Table:
    rows = [
        (
            str(each.question),
            f"{each.prompt_tokens:,}",
            f"{each.known_tokens:,}",
            figure(each.plain_ttft_s),
            figure(each.known_ttft_s),
            middle(ratios([each.known_ttft_s], [each.plain_ttft_s])),
        )
        for each in asked
    ]
    notes = [
        f"{each.bytes_per_token:,.0f} bytes per token on the disk; read back at "
        f"{figure(each.read_back_tokens_per_s.median)} tokens per second "
        f"({range_of(each.read_back_tokens_per_s)})."
        for each in disk
    ]
    return Table(
        "Questions about one document, seconds to the first token, without the prefix cache "
        "and with it",
        ("QUESTION", "PROMPT TOKENS", "KNOWN", "WITHOUT S", "WITH S", "RATIO"),
        tuple(rows),
        tuple(notes),
    )


def _trie_table(trie: Sequence[TrieFigures]) -> Table:
    rows = [
        (
            f"{each.prompts:,}",
            f"{each.pages:,}",
            f"{each.stored_bytes / 1e6:,.1f}",
            f"{each.apart_bytes / 1e6:,.1f}",
            middle(each.look_up_s, 1e-3),
            range_of(each.look_up_s, 1e-3),
        )
        for each in trie
    ]
    return Table(
        f"Prompts of {SHARED_TOKENS + OWN_TOKENS:,} tokens that share {SHARED_TOKENS:,} with a "
        f"tenth of the others, on a tiny network, pages of {trie[0].page_tokens}",
        ("PROMPTS", "PAGES", "MB STORED", "MB APART", "LOOK-UP MS", "RANGE"),
        tuple(rows),
    )


def charts(found: Sequence[QuestionFigures | DiskFigures | TrieFigures]) -> Sequence[Chart]:
    waits = [
        (label, Point.single(f"question {each.question}", seconds))
        for each in found
        if isinstance(each, QuestionFigures)
        for label, seconds in ((PLAIN, each.plain_ttft_s), (KNOWN, each.known_ttft_s))
    ]
    disk = [
        (label, Point.single(each.prompts, size / 1e6))
        for each in found
        if isinstance(each, TrieFigures)
        for label, size in (("stored", each.stored_bytes), ("apart", each.apart_bytes))
    ]
    return [
        Chart(
            "prefix-wait",
            "The prefix cache",
            "",
            "seconds to the first token",
            "bars",
            series(waits),
        ),
        *(
            [
                Chart(
                    "prefix-disk",
                    "Prompts that begin alike",
                    "prompts",
                    "MB",
                    "lines",
                    series(disk),
                )
            ]
            if disk
            else []
        ),
    ]
