"""Generation: speed and memory over time, with and without a window. Then drafts, on workloads. On
several ranks, generation only.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxchat.bench import theirs, workloads
from mlxchat.bench.paired import Side, Spread, interleave, ratios
from mlxchat.bench.report import Figures, one_after_another
from mlxchat.bench.subject import Subject
from mlxchat.engine.generate import Generation
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings

PROMPT_TOKENS = 16
WARM_UP_TOKENS = 8
OURS, THEIRS = "mlxchat", theirs.NAME


@dataclass(frozen=True, slots=True)
class Amounts:
    """`stretches` of `stretch` tokens each, at a window of `window`."""

    stretch: int
    stretches: int
    window: int
    rounds: int


FULL = Amounts(200, stretches=5, window=512, rounds=5)
QUICK = Amounts(16, stretches=4, window=32, rounds=3)
TITLES = workloads.TITLES | {
    "stretch": "Generating, by stretches; active memory is MLX's at the end of each",
}


@dataclass(frozen=True, slots=True)
class _Case:
    side: str
    window: int | None
    window_kept: bool = True

    @property
    def name(self) -> str:
        return f"{self.side}, " + ("no window" if self.window is None else f"window {self.window}")


@dataclass(frozen=True, slots=True)
class _Stretch:
    tokens_per_s: float
    active_memory_bytes: int


def measure(subject: Subject) -> Iterator[Sequence[Figures]]:
    """Greedy generation after a short prompt, without an end token, and workloads."""
    tokenizer = theirs.load_tokenizer(subject.directory) if subject.against else None
    amounts = QUICK if subject.quick else FULL
    if subject.workloads:
        return workloads.measure(subject, tokenizer)
    stretches = _stretches(subject, amounts, tokenizer)
    if subject.model.peers is not None:
        return stretches
    return one_after_another((stretches, workloads.measure(subject, tokenizer)))


def _stretches(subject: Subject, amounts: Amounts, tokenizer: Any) -> Iterator[Sequence[Figures]]:
    names = (OURS, THEIRS) if subject.against else (OURS,)
    cases = [
        _Case(side, window, side == OURS or theirs.keeps_window(subject.model.network, window))
        for window in (None, amounts.window)
        for side in names
    ]
    sides = [_side(subject, case, amounts, tokenizer) for case in cases]
    for values in interleave(sides, amounts.rounds, subject.tick):
        runs = dict(zip(cases, values, strict=True))
        yield [
            _figures(case, n, runs, amounts)
            for case in cases
            if runs[case]
            for n in range(amounts.stretches)
        ]


def _side(subject: Subject, case: _Case, amounts: Amounts, tokenizer: Any) -> Side[list[_Stretch]]:
    def run(stretch: int, stretches: int) -> list[_Stretch]:
        # One more, since the first token ends the prefill.
        tokens = _tokens(subject.model, case, stretch * stretches + 1, tokenizer, subject)
        return list(_timed(tokens, stretch))

    return Side(
        case.name,
        run=lambda: run(amounts.stretch, amounts.stretches),
        warm_up=lambda: run(WARM_UP_TOKENS, 1),
    )


def _tokens(
    model: Model, case: _Case, max_tokens: int, tokenizer: Any, subject: Subject
) -> Iterable[Any]:
    ids = subject.prompt_ids(PROMPT_TOKENS)
    if case.side == THEIRS:
        return theirs.generate(model, tokenizer, ids, max_tokens, max_kv_size=case.window)
    settings = GenerationSettings(max_tokens=max_tokens, ignore_eos=True)
    return Generation(model, ids, model.make_cache(case.window), settings=settings)


def _timed(tokens: Iterable[Any], stretch: int) -> Iterator[_Stretch]:
    """Wall-clock times between tokens, including work that is only done now and then."""
    begun_s = 0.0
    for count, _ in enumerate(tokens):
        if count % stretch == 0:
            now_s = time.perf_counter()
            if count:
                yield _Stretch(stretch / (now_s - begun_s), mx.get_active_memory())
            begun_s = now_s


def _figures(
    case: _Case, n: int, runs: dict[_Case, list[list[_Stretch]]], amounts: Amounts
) -> Figures:
    others = [
        run
        for each, found in runs.items()
        if (case.side, each.side, each.window) == (OURS, THEIRS, case.window)
        for run in found
    ]
    speeds = [run[n].tokens_per_s for run in runs[case]]
    return Figures(
        "stretch",
        {
            "side": case.side,
            "max_kv_size": case.window,
            "window_kept": case.window_kept,
            "from_token": n * amounts.stretch,
            "tokens": amounts.stretch,
            "tokens_per_s": Spread.of(speeds),
            "active_memory_bytes": Spread.of([run[n].active_memory_bytes for run in runs[case]]),
            "speed_ratio": ratios(speeds, [run[n].tokens_per_s for run in others]),
        },
    )
