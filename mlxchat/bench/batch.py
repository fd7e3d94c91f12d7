"""Many prompts at once: different ones, compared with the same prompts one after the other, and
ones that share their beginning."""

import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np

from mlxchat.app.opening import Loaded
from mlxchat.app.side_by_side import SideBySide
from mlxchat.bench import theirs
from mlxchat.bench.paired import Side, Spread, interleave, ratios
from mlxchat.bench.report import Figures, one_after_another
from mlxchat.bench.subject import SENTENCES, Subject
from mlxchat.engine.generate import Generation
from mlxchat.errors import ModelError
from mlxchat.models.model import Model
from mlxchat.request import BatchInput, BatchRequest, Setup
from mlxchat.rows.output import Output
from mlxchat.rows.pending import Pending
from mlxchat.rows.read import Rows
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings
from mlxchat.units import count

OURS, ALONE, THEIRS = "mlxchat", "one by one", theirs.NAME
PROMPT_TOKENS = 40
OWN_TOKENS = 8
SHARED_ROWS = 32
WARM_UP_PROMPTS, WARM_UP_TOKENS = 2, 4
TITLES = {
    "rows": "Different prompts, tokens generated per second, reading the prompts included; gain "
    "over one by one",
    "shared": f"Prompts that begin alike, at most {SHARED_ROWS} side by side, seconds for all",
}

# Called with the number of tokens generated since the last call.
Take = Callable[[int], object]


# The side, and its rows.
Case = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Generated:
    tokens_per_s: float
    ttft_s: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class Amounts:
    """`tokens` for each of `rows` different prompts, in each of `rounds`. Of `prompts` that share
    `shared` tokens, `shared_tokens` for each."""

    rows: tuple[int, ...]
    tokens: int
    rounds: int
    prompts: int
    shared: int = 1_000
    shared_tokens: int = 16


FULL = Amounts(rows=(1, 8, 32), tokens=64, rounds=3, prompts=64)
QUICK = Amounts(rows=(1, 8), tokens=16, rounds=2, prompts=8)


def measure(subject: Subject) -> Iterator[Sequence[Figures]]:
    amounts = QUICK if subject.quick else FULL
    return one_after_another((_different(subject, amounts), _shared(subject, amounts)))


def _different(subject: Subject, amounts: Amounts) -> Iterator[Sequence[Figures]]:
    """Greedy generation after different prompts, without an end token."""
    tokens = amounts.tokens
    prompts = different_prompts(subject.model, max(amounts.rows), PROMPT_TOKENS)
    names = (OURS, ALONE, *((THEIRS,) if subject.against else ()))
    sides = {
        (name, rows): _side(subject, name, prompts[:rows], tokens)
        for rows in amounts.rows
        for name in names
    }
    prompt_tokens = len(subject.model.tokenizer.prompt(prompts[0]).ids)
    for runs in interleave(sides, amounts.rounds, subject.tick):
        yield [_figures(case, runs, prompt_tokens, tokens) for case in runs]


def different_prompts(model: Model, number: int, tokens: int) -> list[str]:
    """Prompts of about `tokens` tokens each; no two begin alike."""
    random = np.random.default_rng(0)
    words = " ".join(SENTENCES).split()
    prompts: list[str] = []
    for n in range(number):
        text = " ".join([str(n), *random.permutation(words)])
        ids = model.tokenizer.encode(text)
        prompts.append(model.tokenizer.decode(np.resize(ids, tokens).tolist()))
    return prompts


def _side(subject: Subject, name: str, prompts: Sequence[str], tokens: int) -> Side[Generated]:
    generate = {OURS: generate_side_by_side, ALONE: _one_by_one, THEIRS: generate_theirs}[name]

    def run() -> Generated:
        timer = Timer()
        mx.reset_peak_memory()
        generate(subject, prompts, tokens, timer.take)
        return timer.run(len(prompts) * tokens)

    return Side(
        f"{count(len(prompts), 'row')}, {name}",
        run=run,
        warm_up=lambda: generate(subject, prompts, WARM_UP_TOKENS, lambda _: None),
    )


class Timer:
    """Times a generation from now on; `take` gets the numbers of generated tokens."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._first_s: float | None = None
        self.tokens = 0

    def take(self, tokens: int) -> None:
        if tokens and self._first_s is None:
            self._first_s = time.perf_counter()
        self.tokens += tokens

    def run(self, expected_tokens: int) -> Generated:
        """The run ends now. All sides must do the same work."""
        seconds = time.perf_counter() - self._began_s
        assert self.tokens == expected_tokens, f"{self.tokens} tokens, not {expected_tokens}"
        assert self._first_s is not None
        return Generated(self.tokens / seconds, self._first_s - self._began_s, mx.get_peak_memory())


def generate_side_by_side(
    subject: Subject, prompts: Sequence[str], tokens: int, take: Take, rows: int | None = None
) -> None:
    """As `mlxchat batch` does, without files; all prompts side by side, or `rows` of them. Raises
    ModelError if a row fails."""
    model, settings = subject.model, CacheSettings(None)
    request = BatchRequest(
        setup=Setup(prefix_cache=False),
        rows=rows or len(prompts),
        max_tokens=tokens,
        ignore_eos=True,
        lookup=False,
    )
    cache = model.make_cache(None, settings.keep)
    runner = SideBySide(
        request,
        Loaded(model.name, model, settings, SamplingSettings(seed=0), cache),
        should_stop=lambda: False,
        on_tokens=take,
        notify=subject.notify_once,
    )
    lines = "\n".join(json.dumps({"prompt": prompt}) for prompt in prompts)
    source = Rows(BatchInput(), io.BytesIO(lines.encode()))
    pending = Pending(source, Output(lambda line: None))
    for result in runner.results(pending):
        if result.error is not None:
            raise ModelError(result.error)
        pending.finish(result)


def _one_by_one(subject: Subject, prompts: Sequence[str], tokens: int, take: Take) -> None:
    settings = GenerationSettings(max_tokens=tokens, ignore_eos=True, lookup=False)
    model = subject.model
    for prompt in prompts:
        ids = model.tokenizer.prompt(prompt).ids
        for token in Generation(model, ids, model.make_cache(), settings=settings):
            take(token.id is not None)


def generate_theirs(
    subject: Subject, prompts: Sequence[str], tokens: int, take: Take, rows: int | None = None
) -> None:
    """All prompts side by side, or `rows` of them."""
    model = subject.model
    ids = [model.tokenizer.prompt(prompt).ids for prompt in prompts]
    for new in theirs.generate_batch(model, ids, tokens, rows or len(prompts)):
        take(new)


def _figures(
    case: Case, runs: dict[Case, list[Generated]], prompt_tokens: int, tokens: int
) -> Figures:
    name, rows = case

    def speeds(side: str) -> list[float]:
        return [run.tokens_per_s for run in runs.get((side, rows), [])]

    own = runs[case]
    return Figures(
        "rows",
        {
            "rows": rows,
            "side": name,
            "prompt_tokens": prompt_tokens,
            "tokens": tokens,
            "tokens_per_s": Spread.of(speeds(name)),
            "ttft_s": Spread.of([run.ttft_s for run in own]),
            "peak_memory_bytes": Spread.of([float(run.peak_memory_bytes) for run in own]),
            "gain": None if name == ALONE else ratios(speeds(name), speeds(ALONE)),
            "speed_ratio": None if name == THEIRS else ratios(speeds(name), speeds(THEIRS)),
        },
    )


def _shared(subject: Subject, amounts: Amounts) -> Iterator[Sequence[Figures]]:
    """Greedy generation after prompts that begin alike, without an end token."""
    prompts = sharing_prompts(subject, amounts)
    generators = {OURS: generate_side_by_side}
    if subject.against:
        generators[THEIRS] = generate_theirs
    sides: dict[str, Side[float]] = {}
    for name, generate in generators.items():
        rows = min(SHARED_ROWS, len(prompts))
        run = partial(generate, subject, rows=rows, take=lambda _: None)
        timed = partial(_seconds, partial(run, prompts=prompts, tokens=amounts.shared_tokens))
        warm_up = partial(run, prompts=prompts[:WARM_UP_PROMPTS], tokens=WARM_UP_TOKENS)
        sides[name] = Side(name, timed, warm_up)
    prompt_tokens = len(subject.model.tokenizer.prompt(prompts[0]).ids)
    for runs in interleave(sides, 1, subject.tick):
        yield [
            Figures(
                "shared",
                {
                    "side": name,
                    "prompts": amounts.prompts,
                    "shared_tokens": amounts.shared,
                    "prompt_tokens": prompt_tokens,
                    "tokens": amounts.shared_tokens,
                    "seconds": Spread.of(seconds),
                    "times_ours": None if name == OURS else ratios(seconds, runs[OURS]),
                },
            )
            for name, seconds in runs.items()
        ]


def sharing_prompts(subject: Subject, amounts: Amounts) -> list[str]:
    """Prompts with the same text and then different ends, in about `OWN_TOKENS` tokens each."""
    tokenizer = subject.model.tokenizer
    shared = tokenizer.decode(subject.prompt_ids(amounts.shared).tolist())
    prompts: list[str] = []
    for n in range(amounts.prompts):
        own = tokenizer.encode(f"\n{n:02} is bread, onions, maps or stars?")[:OWN_TOKENS]
        prompts.append(shared + tokenizer.decode(own.tolist()))
    return prompts


def _seconds(run: partial[None]) -> float:
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s
