"""Generation: speed and memory over time, with and without a window, and the cost per token of the
loop itself, on a network so small that it shows. Then drafts, on workloads. On several ranks,
generation only.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mlx.core as mx

from mlxchat.bench import theirs, workloads
from mlxchat.bench.paired import Side, Spread, differences, interleave, ratios
from mlxchat.bench.report import Figures, one_after_another
from mlxchat.bench.subject import Subject
from mlxchat.bench.tiny import tiny_config, with_tiny_network
from mlxchat.engine.generate import Generation
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings

PROMPT_TOKENS = 16
WARM_UP_TOKENS = 8
OURS, THEIRS, BARE = "mlxchat", theirs.NAME, "bare loop"


@dataclass(frozen=True, slots=True)
class Amounts:
    """`stretches` of `stretch` tokens each, at a window of `window`. On the tiny network,
    `tiny_tokens` in each of `tiny_rounds`: many short rounds, because a busy machine adds more
    than the difference for seconds at a time."""

    stretch: int
    stretches: int
    window: int
    rounds: int
    tiny_tokens: int
    tiny_rounds: int


FULL = Amounts(200, stretches=5, window=512, rounds=5, tiny_tokens=50, tiny_rounds=61)
QUICK = Amounts(16, stretches=4, window=32, rounds=3, tiny_tokens=20, tiny_rounds=9)
TITLES = workloads.TITLES | {
    "stretch": "Generating, by stretches; active memory is MLX's at the end of each",
    "overhead": "A token on a tiny network, and its excess over the bare loop's",
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
    overheads = _overheads(subject, amounts, tokenizer)
    return one_after_another((stretches, overheads, workloads.measure(subject, tokenizer)))


# During generation


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


# The loop itself


def _overheads(subject: Subject, amounts: Amounts, tokenizer: Any) -> Iterator[Sequence[Figures]]:
    model = with_tiny_network(subject.model, tiny_config(layers=8, width=128, vocabulary=49_152))
    ids = subject.prompt_ids(PROMPT_TOKENS) % 256
    ours, other = _Case(OURS, None), _Case(THEIRS, None)
    loops: dict[str, Callable[[int], Iterable[Any]]] = {
        BARE: lambda n: theirs.bare_loop(model.network, ids, n),
        OURS: lambda n: _tokens(model, ours, n, tokenizer, subject),
    }
    if subject.against:
        loops[THEIRS] = lambda n: _tokens(model, other, n, tokenizer, subject)
    sides = [_timed_loop(name, loop, amounts.tiny_tokens) for name, loop in loops.items()]
    for values in interleave(sides, amounts.tiny_rounds, subject.tick):
        bare = values[0]
        yield [
            Figures(
                "overhead",
                {
                    "side": name,
                    "token_s": Spread.of(runs),
                    "above_bare_s": None if name == BARE else differences(runs, bare),
                },
            )
            for name, runs in zip(loops, values, strict=True)
            if runs
        ]


def _timed_loop(name: str, loop: Callable[[int], Iterable[Any]], tokens: int) -> Side[float]:
    return Side(
        f"tiny network, {name}",
        run=lambda: _token_s(loop(tokens)),
        warm_up=lambda: _token_s(loop(WARM_UP_TOKENS)),
    )


def _token_s(tokens: Iterable[Any]) -> float:
    """Median seconds between two tokens."""
    times_s = [time.perf_counter() for _ in tokens]
    return statistics.median(later - earlier for earlier, later in pairwise(times_s))
