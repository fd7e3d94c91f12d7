"""Reading a prompt: speed and peak memory by step size and prompt length.

"all at once" is a single step for the whole prompt; mlx-lm uses its own default.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import mlx.core as mx

from mlxchat.bench import theirs
from mlxchat.bench.paired import TIE, VERDICTS, Side, Spread, interleave, ratios, verdict
from mlxchat.bench.report import Chart, Point, Table, middle, range_of, series
from mlxchat.bench.subject import Subject
from mlxchat.engine.generate import Generation
from mlxchat.models.model import Model
from mlxchat.settings import DEFAULT_PREFILL_STEP_SIZE, GenerationSettings
from mlxchat.text.spans import TokenIds
from mlxchat.units import format_bytes

STEPS, QUICK_STEPS = (64, 128, 256, 512, 1_024, 2_048), (64, 128)
LENGTHS, QUICK_LENGTHS = (512, 4_232), (256,)
ROUNDS = 3
WARM_UP_TOKENS = 32
OURS, THEIRS, ALL = "mlxchat", theirs.NAME, "all at once"


@dataclass(frozen=True, slots=True)
class PrefillFigures:
    """Ratios compare with `ratio_to` in the same rounds; None for that side itself."""

    kind: ClassVar[str] = "prefill"

    side: str
    prompt_tokens: int
    step_size: int
    tokens_per_s: Spread
    peak_memory_bytes: Spread
    ratio_to: str
    speed_ratio: Spread | None
    memory_ratio: Spread | None

    @property
    def step(self) -> str:
        """The step size in words."""
        return f"{self.step_size:,}" if self.step_size < self.prompt_tokens else ALL


@dataclass(frozen=True, slots=True)
class _Case:
    side: str
    prompt_tokens: int
    step_size: int


@dataclass(frozen=True, slots=True)
class _Run:
    tokens_per_s: float
    peak_memory_bytes: int


def measure(subject: Subject) -> Iterator[Sequence[PrefillFigures]]:
    """Read each prompt into an empty, unbounded cache, up to its first token."""
    cases = _cases(subject)
    tokenizer = theirs.load_tokenizer(subject.directory) if subject.against else None
    sides = [_side(subject, case, tokenizer) for case in cases]
    for values in interleave(sides, ROUNDS, subject.tick):
        runs = dict(zip(cases, values, strict=True))
        yield [_figures(case, runs) for case in cases if runs[case]]


def _cases(subject: Subject) -> list[_Case]:
    cases: list[_Case] = []
    for length in QUICK_LENGTHS if subject.quick else LENGTHS:
        steps = [step for step in (QUICK_STEPS if subject.quick else STEPS) if step < length]
        cases += [_Case(OURS, length, step) for step in (*steps, length)]
        if subject.against:
            cases.append(_Case(THEIRS, length, min(theirs.DEFAULT_STEP_SIZE, length)))
    return cases


def _side(subject: Subject, case: _Case, tokenizer: Any) -> Side[_Run]:
    ids = subject.prompt_ids(case.prompt_tokens)
    if case.side == THEIRS:
        read = partial(_read_theirs, subject.model, tokenizer)
    else:
        read = partial(_read_ours, subject.model, case.step_size)
    return Side(
        f"{case.prompt_tokens:,} tokens, {case.side}, steps of {case.step_size:,}",
        run=lambda: read(ids),
        warm_up=lambda: read(ids[:WARM_UP_TOKENS]),
    )


def _read_ours(model: Model, step_size: int, ids: TokenIds) -> _Run:
    settings = GenerationSettings(max_tokens=1, ignore_eos=True)
    cache = model.make_cache()
    generation = Generation(model, ids, cache, settings=settings, prefill_step_size=step_size)
    list(generation)
    stats = generation.stats
    return _Run(stats.prefill_tokens_per_s, stats.peak_memory_bytes)


def _read_theirs(model: Model, tokenizer: Any, ids: TokenIds) -> _Run:
    mx.reset_peak_memory()
    last = list(theirs.generate(model, tokenizer, ids, 1))[-1]
    return _Run(last.prompt_tps, mx.get_peak_memory())


def _figures(case: _Case, runs: dict[_Case, list[_Run]]) -> PrefillFigures:
    against = any(each.side == THEIRS for each in runs)
    reference = next(
        each
        for each in runs
        if each.prompt_tokens == case.prompt_tokens
        and (each.side == THEIRS if against else each.step_size == each.prompt_tokens)
    )
    speeds, others = ([run.tokens_per_s for run in runs[each]] for each in (case, reference))
    peaks, other_peaks = (
        [float(run.peak_memory_bytes) for run in runs[each]] for each in (case, reference)
    )
    is_reference = case == reference
    return PrefillFigures(
        side=case.side,
        prompt_tokens=case.prompt_tokens,
        step_size=case.step_size,
        tokens_per_s=Spread.of(speeds),
        peak_memory_bytes=Spread.of(peaks),
        ratio_to=THEIRS if against else ALL,
        speed_ratio=None if is_reference else ratios(speeds, others),
        memory_ratio=None if is_reference else ratios(peaks, other_peaks),
    )


def tables(found: Sequence[PrefillFigures]) -> Sequence[Table]:
    lengths = dict.fromkeys(each.prompt_tokens for each in found)
    return [_table([each for each in found if each.prompt_tokens == n]) for n in lengths]


def _table(found: Sequence[PrefillFigures]) -> Table:
    rows = [
        (
            each.side,
            each.step,
            middle(each.tokens_per_s),
            range_of(each.tokens_per_s),
            middle(each.speed_ratio),
            verdict(each.speed_ratio, "faster", "slower"),
            format_bytes(each.peak_memory_bytes.median),
            middle(each.memory_ratio),
            verdict(each.memory_ratio, "more", "less"),
        )
        for each in found
    ]
    first = found[0]
    return Table(
        f"Prefill of {first.prompt_tokens:,} tokens, {first.tokens_per_s.runs} runs each; "
        f"ratios to {first.ratio_to}",
        ("SIDE", "STEP", "TOK/S", "RANGE", "RATIO", "SPEED", "PEAK", "RATIO", "MEMORY"),
        tuple(rows),
        (VERDICTS, _recommendation(found)),
    )


def _recommendation(found: Sequence[PrefillFigures]) -> str:
    default = f"mlxchat's default step is {DEFAULT_PREFILL_STEP_SIZE} tokens"
    best = best_step(found)
    return default + (f"; recommended here: {best:,}." if best is not None else ".")


def best_step(found: Sequence[PrefillFigures]) -> int | None:
    """The step to recommend: the default or the smallest of those within a tie of the fastest. None
    if the default was not compared: the prompt fits in one step."""
    speeds = {
        each.step_size: each.tokens_per_s.median
        for each in found
        if each.side == OURS and each.step_size < each.prompt_tokens
    }
    if DEFAULT_PREFILL_STEP_SIZE not in speeds:
        return None
    fastest = max(speeds.values())
    quick = [step for step, speed in speeds.items() if speed >= fastest * (1 - TIE)]
    return DEFAULT_PREFILL_STEP_SIZE if DEFAULT_PREFILL_STEP_SIZE in quick else min(quick)


def charts(found: Sequence[PrefillFigures]) -> Sequence[Chart]:
    # The longest prompt was read with all step sizes.
    found = sorted(found, key=lambda each: -each.prompt_tokens)

    def chart(name: str, title: str, y: str, pick: str, unit: float) -> Chart:
        points = [
            (
                f"{each.prompt_tokens:,} tokens",
                Point.of(
                    each.side if each.side == THEIRS else each.step, getattr(each, pick), unit
                ),
            )
            for each in found
        ]
        return Chart(name, title, "tokens per step", y, "bars", series(points))

    return [
        chart("prefill-speed", "Reading a prompt", "tokens per second", "tokens_per_s", 1),
        chart("prefill-memory", "Peak memory of reading a prompt", "MB", "peak_memory_bytes", 1e6),
    ]
