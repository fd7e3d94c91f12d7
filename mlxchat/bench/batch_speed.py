"""Different prompts side by side, compared with the same prompts one after the other."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxchat.bench import theirs
from mlxchat.bench.paired import Side, Spread, interleave, ratios
from mlxchat.bench.report import Figures
from mlxchat.bench.scheduler import run_rows
from mlxchat.bench.subject import SENTENCES, Subject
from mlxchat.engine.generate import Generation
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings
from mlxchat.units import count

OURS, ALONE, THEIRS = "mlxchat", "one by one", theirs.NAME
PROMPT_TOKENS = 40
WARM_UP_TOKENS = 4
TITLES = {
    "rows": "Different prompts, tokens generated per second, reading the prompts included; gain "
    "over one by one"
}


# Called with the number of tokens generated since the last call.
Take = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class _Run:
    tokens_per_s: float
    ttft_s: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class _Case:
    side: str
    rows: int


def measure(
    subject: Subject, row_counts: Sequence[int], tokens: int, rounds: int
) -> Iterator[Sequence[Figures]]:
    """Greedy generation of `tokens` tokens per row, without an end token."""
    prompts = different_prompts(subject.model, max(row_counts), PROMPT_TOKENS)
    names = (OURS, ALONE, *((THEIRS,) if subject.against else ()))
    cases = [_Case(name, rows) for rows in row_counts for name in names]
    sides = [_side(subject, case, prompts[: case.rows], tokens) for case in cases]
    prompt_tokens = len(subject.model.tokenizer.prompt(prompts[0]).ids)
    for values in interleave(sides, rounds, subject.tick):
        runs = dict(zip(cases, values, strict=True))
        yield [_figures(case, runs, prompt_tokens, tokens) for case in cases if runs[case]]


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


def _side(subject: Subject, case: _Case, prompts: Sequence[str], tokens: int) -> Side[_Run]:
    generate = {OURS: generate_side_by_side, ALONE: _one_by_one, THEIRS: generate_theirs}[case.side]

    def run() -> _Run:
        timer = Timer()
        mx.reset_peak_memory()
        generate(subject, prompts, tokens, timer.take)
        return timer.run(len(prompts) * tokens)

    return Side(
        f"{count(case.rows, 'row')}, {case.side}",
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

    def run(self, expected_tokens: int) -> _Run:
        """The run ends now. All sides must do the same work."""
        seconds = time.perf_counter() - self._began_s
        assert self.tokens == expected_tokens, f"{self.tokens} tokens, not {expected_tokens}"
        assert self._first_s is not None
        return _Run(self.tokens / seconds, self._first_s - self._began_s, mx.get_peak_memory())


def generate_side_by_side(
    subject: Subject, prompts: Sequence[str], tokens: int, take: Take, rows: int | None = None
) -> None:
    """As `mlxchat batch` does; all prompts side by side, or `rows` of them."""
    results = run_rows(
        subject.model,
        prompts,
        tokens,
        rows or len(prompts),
        on_tokens=take,
        notify=subject.notify_once,
    )
    for _ in results:
        pass


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
    case: _Case, runs: dict[_Case, list[_Run]], prompt_tokens: int, tokens: int
) -> Figures:
    def speeds(side: str) -> list[float]:
        return [run.tokens_per_s for run in runs.get(_Case(side, case.rows), [])]

    own = runs[case]
    return Figures(
        "rows",
        {
            "rows": case.rows,
            "side": case.side,
            "prompt_tokens": prompt_tokens,
            "tokens": tokens,
            "tokens_per_s": Spread.of(speeds(case.side)),
            "ttft_s": Spread.of([run.ttft_s for run in own]),
            "peak_memory_bytes": Spread.of([float(run.peak_memory_bytes) for run in own]),
            "gain": None if case.side == ALONE else ratios(speeds(case.side), speeds(ALONE)),
            "speed_ratio": (
                None if case.side == THEIRS else ratios(speeds(case.side), speeds(THEIRS))
            ),
        },
    )
