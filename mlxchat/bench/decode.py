"""Generation: speed and memory over time, with and without a window, and the cost per token of the
loop itself, on a network so small that it shows. Then drafts, on workloads. On several ranks,
measures their communication instead.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import mlx.core as mx

from mlxchat.bench import communication, theirs, workloads
from mlxchat.bench.communication import CommunicationFigures
from mlxchat.bench.paired import VERDICTS, Side, Spread, differences, interleave, ratios, verdict
from mlxchat.bench.report import Chart, Point, Table, middle, range_of, series
from mlxchat.bench.subject import Subject
from mlxchat.bench.tiny import tiny_config, with_tiny_network
from mlxchat.bench.workloads import WorkloadFigures
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
    than the difference for seconds at a time. `ranks_tokens` to measure communication."""

    stretch: int
    stretches: int
    window: int
    rounds: int
    tiny_tokens: int
    tiny_rounds: int
    ranks_tokens: int


FULL = Amounts(
    200, stretches=5, window=512, rounds=5, tiny_tokens=50, tiny_rounds=61, ranks_tokens=100
)
QUICK = Amounts(
    16, stretches=4, window=32, rounds=3, tiny_tokens=20, tiny_rounds=9, ranks_tokens=16
)


@dataclass(frozen=True, slots=True)
class StretchFigures:
    """From the token `from_token` on. `speed_ratio` compares with mlx-lm at the same window; if
    `window_kept` is false, mlx-lm ignores the window for this model."""

    kind: ClassVar[str] = "stretch"

    side: str
    max_kv_size: int | None
    window_kept: bool
    from_token: int
    tokens: int
    tokens_per_s: Spread
    active_memory_bytes: Spread
    speed_ratio: Spread | None


@dataclass(frozen=True, slots=True)
class OverheadFigures:
    """On the tiny network: median time per token, and its excess over the bare loop's."""

    kind: ClassVar[str] = "overhead"

    side: str
    token_s: Spread
    above_bare_s: Spread | None


Found = StretchFigures | OverheadFigures | CommunicationFigures | WorkloadFigures


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


def measure(subject: Subject) -> Iterator[Sequence[Found]]:
    """Greedy generation after a short prompt, without an end token, and workloads."""
    tokenizer = theirs.load_tokenizer(subject.directory) if subject.against else None
    before: Sequence[Found] = ()
    for part in _parts(subject, QUICK if subject.quick else FULL, tokenizer):
        found: Sequence[Found] = ()
        for found in part:
            yield [*before, *found]
        before = [*before, *found]


def _parts(
    subject: Subject, amounts: Amounts, tokenizer: Any
) -> Iterator[Iterator[Sequence[Found]]]:
    if subject.workloads:
        yield workloads.measure(subject, tokenizer)
        return
    yield _stretches(subject, amounts, tokenizer)
    peers = subject.model.peers
    if peers is not None:
        yield communication.measure(subject, peers, amounts.ranks_tokens, amounts.rounds)
        return
    yield _overheads(subject, amounts, tokenizer)
    yield workloads.measure(subject, tokenizer)


# During generation


def _stretches(
    subject: Subject, amounts: Amounts, tokenizer: Any
) -> Iterator[Sequence[StretchFigures]]:
    names = (OURS, THEIRS) if subject.against else (OURS,)
    cases = [
        _Case(side, window, _window_kept(subject.model, side, window))
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


def _window_kept(model: Model, side: str, window: int | None) -> bool:
    return side == OURS or window is None or theirs.keeps_window(model.network, window)


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
        return theirs.generate(model, tokenizer, ids, max_tokens, case.window)
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
) -> StretchFigures:
    others = [
        run
        for each, found in runs.items()
        if (case.side, each.side, each.window) == (OURS, THEIRS, case.window)
        for run in found
    ]
    speeds = [run[n].tokens_per_s for run in runs[case]]
    return StretchFigures(
        side=case.side,
        max_kv_size=case.window,
        window_kept=case.window_kept,
        from_token=n * amounts.stretch,
        tokens=amounts.stretch,
        tokens_per_s=Spread.of(speeds),
        active_memory_bytes=Spread.of([run[n].active_memory_bytes for run in runs[case]]),
        speed_ratio=ratios(speeds, [run[n].tokens_per_s for run in others]),
    )


# The loop itself


def _overheads(
    subject: Subject, amounts: Amounts, tokenizer: Any
) -> Iterator[Sequence[OverheadFigures]]:
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
            OverheadFigures(
                name, Spread.of(runs), None if name == BARE else differences(runs, bare)
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


# Tables and charts


def tables(found: Sequence[Found]) -> Sequence[Table]:
    stretches = [each for each in found if isinstance(each, StretchFigures)]
    overheads = [each for each in found if isinstance(each, OverheadFigures)]
    replies = [each for each in found if isinstance(each, WorkloadFigures)]
    return [
        *([_stretch_table(stretches)] if stretches else []),
        *([_overhead_table(overheads)] if overheads else []),
        *(communication.table(each) for each in found if isinstance(each, CommunicationFigures)),
        *([workloads.table(replies)] if replies else []),
    ]


def _stretch_table(found: Sequence[StretchFigures]) -> Table:
    rows = [
        (
            each.side,
            _window(each),
            f"{each.from_token:,}",
            middle(each.tokens_per_s),
            range_of(each.tokens_per_s),
            middle(each.speed_ratio),
            verdict(each.speed_ratio, "faster", "slower"),
            f"{each.active_memory_bytes.median / 1e6:,.2f}",
        )
        for each in found
    ]
    compared = any(each.side == THEIRS for each in found)
    return Table(
        f"Decode, by {found[0].tokens} tokens, {found[0].tokens_per_s.runs} runs each"
        + (f"; ratios to {THEIRS} with the same window" if compared else ""),
        ("SIDE", "WINDOW", "FROM TOKEN", "TOK/S", "RANGE", "RATIO", "SPEED", "ACTIVE MB"),
        tuple(rows),
        (
            *((VERDICTS,) if compared else ()),
            "Active memory is MLX's, weights and cache, at the end of each stretch.",
        ),
    )


def _window(each: StretchFigures) -> str:
    if each.max_kv_size is None:
        return "none"
    return f"{each.max_kv_size:,}" + ("" if each.window_kept else " ignored")


def _overhead_table(found: Sequence[OverheadFigures]) -> Table:
    rows = [
        (
            each.side,
            middle(each.token_s, 1e-3),
            range_of(each.token_s, 1e-3),
            middle(each.above_bare_s, 1e-3),
            range_of(each.above_bare_s, 1e-3),
        )
        for each in found
    ]
    return Table(
        f"A token on a tiny network, {found[0].token_s.runs} runs each",
        ("SIDE", "MS", "RANGE", "ABOVE BARE LOOP", "RANGE"),
        tuple(rows),
    )


def charts(found: Sequence[Found]) -> Sequence[Chart]:
    stretches = [each for each in found if isinstance(each, StretchFigures)]

    def chart(name: str, title: str, y: str, pick: str, unit: float) -> Chart:
        points = [
            (
                _Case(each.side, each.max_kv_size).name,
                Point.of(each.from_token + each.tokens, getattr(each, pick), unit),
            )
            for each in stretches
        ]
        return Chart(name, title, "tokens generated", y, "lines", series(points))

    drawn = (
        []
        if not stretches
        else [
            chart("decode-speed", "Generating", "tokens per second", "tokens_per_s", 1),
            chart("decode-memory", "Active memory", "MB", "active_memory_bytes", 1e6),
        ]
    )
    overheads = [
        ("a token", Point.of(each.side, each.token_s, 1e-3))
        for each in found
        if isinstance(each, OverheadFigures)
    ]
    if overheads:
        drawn.append(
            Chart(
                "decode-overhead",
                "A token on a tiny network",
                "loop",
                "ms",
                "bars",
                series(overheads),
            )
        )
    replies = [each for each in found if isinstance(each, WorkloadFigures)]
    if replies:
        drawn.append(workloads.chart(replies))
    return drawn
