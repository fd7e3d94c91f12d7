"""Different prompts side by side, compared with the same prompts one after the other."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx
import numpy as np

from mlxchat.bench import theirs
from mlxchat.bench.paired import VERDICTS, Side, Spread, interleave, ratios, verdict
from mlxchat.bench.report import Chart, Point, Table, middle, range_of, series
from mlxchat.bench.scheduler import run_rows
from mlxchat.bench.subject import SENTENCES, Subject
from mlxchat.engine.generate import Generation
from mlxchat.errors import ModelError
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings
from mlxchat.units import count, format_bytes

OURS, ALONE, THEIRS = "mlxchat", "one by one", theirs.NAME
PROMPT_TOKENS = 40
WARM_UP_TOKENS = 4


# Called with the number of tokens generated since the last call.
Take = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class RowsFigures:
    """`rows` prompts, `tokens` generated for each. `ttft_s` is the time to the first token of the
    first row. `gain` compares the speed with the same prompts one by one, `speed_ratio` with
    mlx-lm's."""

    kind: ClassVar[str] = "rows"

    side: str
    rows: int
    prompt_tokens: int
    tokens: int
    tokens_per_s: Spread
    ttft_s: Spread
    peak_memory_bytes: Spread
    gain: Spread | None
    speed_ratio: Spread | None


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
) -> Iterator[Sequence[RowsFigures]]:
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
    for result in run_rows(
        subject.model,
        prompts,
        tokens,
        len(prompts) if rows is None else rows,
        on_tokens=lambda new, cache_bytes: take(new),
        notify=subject.notify_once,
    ):
        if result.error is not None:
            raise ModelError(result.error)


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
    for new in theirs.generate_batch(model, ids, tokens, len(prompts) if rows is None else rows):
        take(new)


def _figures(
    case: _Case, runs: dict[_Case, list[_Run]], prompt_tokens: int, tokens: int
) -> RowsFigures:
    def speeds(side: str) -> list[float]:
        return [run.tokens_per_s for run in runs.get(_Case(side, case.rows), [])]

    own = runs[case]
    return RowsFigures(
        side=case.side,
        rows=case.rows,
        prompt_tokens=prompt_tokens,
        tokens=tokens,
        tokens_per_s=Spread.of(speeds(case.side)),
        ttft_s=Spread.of([run.ttft_s for run in own]),
        peak_memory_bytes=Spread.of([float(run.peak_memory_bytes) for run in own]),
        gain=None if case.side == ALONE else ratios(speeds(case.side), speeds(ALONE)),
        speed_ratio=None if case.side == THEIRS else ratios(speeds(case.side), speeds(THEIRS)),
    )


def tables(found: Sequence[RowsFigures]) -> list[Table]:
    return [_speed_table(found), _ratio_table(found)] if found else []


def _speed_table(found: Sequence[RowsFigures]) -> Table:
    rows = [
        (
            str(each.rows),
            each.side,
            middle(each.tokens_per_s),
            range_of(each.tokens_per_s),
            middle(each.ttft_s),
            format_bytes(each.peak_memory_bytes.median),
        )
        for each in found
    ]
    first = found[0]
    return Table(
        f"Different prompts of {first.prompt_tokens} tokens, {first.tokens} tokens of output for "
        "each: tokens generated per second, reading the prompts included",
        ("ROWS", "SIDE", "TOK/S", "RANGE", "FIRST TOKEN S", "PEAK"),
        tuple(rows),
    )


def _ratio_table(found: Sequence[RowsFigures]) -> Table:
    rows = [
        (
            str(each.rows),
            each.side,
            middle(each.gain),
            range_of(each.gain),
            middle(each.speed_ratio),
            range_of(each.speed_ratio),
            verdict(each.speed_ratio, "faster", "slower"),
        )
        for each in found
    ]
    compared = any(each.side == THEIRS for each in found)
    return Table(
        "The same as ratios: to the same prompts one by one in this process"
        + (f", and to {THEIRS}" if compared else ""),
        ("ROWS", "SIDE", "GAIN", "RANGE", f"TO {THEIRS.upper()}", "RANGE", "SPEED"),
        tuple(rows),
        (VERDICTS,) if compared else (),
    )


def chart(found: Sequence[RowsFigures]) -> Chart:
    points = [(each.side, Point.of(count(each.rows, "row"), each.tokens_per_s)) for each in found]
    return Chart(
        "batch-speed", "Rows side by side", "", "tokens per second", "bars", series(points)
    )
