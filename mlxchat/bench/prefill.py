"""Reading a prompt: speed and peak memory by step size and prompt length.

"all at once" is a single step for the whole prompt; mlx-lm uses its own default.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx

from mlxchat.bench import theirs
from mlxchat.bench.paired import Side, Spread, interleave, ratios
from mlxchat.bench.report import Figures
from mlxchat.bench.subject import Subject
from mlxchat.engine.generate import Generation
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings
from mlxchat.text.spans import TokenIds

STEPS, QUICK_STEPS = (64, 128, 256, 512, 1_024, 2_048), (64, 128)
LENGTHS, QUICK_LENGTHS = (512, 4_232), (256,)
ROUNDS = 3
WARM_UP_TOKENS = 32
OURS, THEIRS, ALL = "mlxchat", theirs.NAME, "all at once"
TITLES = {"prefill": "Reading a prompt in steps"}


@dataclass(frozen=True, slots=True)
class _Case:
    side: str
    prompt_tokens: int
    step_size: int


@dataclass(frozen=True, slots=True)
class _Run:
    tokens_per_s: float
    peak_memory_bytes: int


def measure(subject: Subject) -> Iterator[Sequence[Figures]]:
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


def _figures(case: _Case, runs: dict[_Case, list[_Run]]) -> Figures:
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
    compared = case != reference
    return Figures(
        "prefill",
        {
            "prompt_tokens": case.prompt_tokens,
            "side": case.side,
            "step_size": case.step_size,
            "tokens_per_s": Spread.of(speeds),
            "peak_memory_bytes": Spread.of(peaks),
            "ratio_to": THEIRS if against else ALL,
            "speed_ratio": ratios(speeds, others) if compared else None,
            "memory_ratio": ratios(peaks, other_peaks) if compared else None,
        },
    )
