"""Reading a prompt: speed and peak memory by step size and prompt length.

"all at once" is a single step for the whole prompt; mlx-lm uses its own default.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from mlxchat.bench import theirs
from mlxchat.bench.paired import Side, Spread, interleave, ratios
from mlxchat.bench.report import Figures
from mlxchat.bench.subject import Subject
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings
from mlxchat.text.spans import TokenIds

STEPS, QUICK_STEPS = (64, 128, 256, 512, 1_024, 2_048), (64, 128)
LENGTHS, QUICK_LENGTHS = (512, 4_232), (256,)
ROUNDS = 3
WARM_UP_TOKENS = 32
OURS, THEIRS, ALL = "mlxchat", theirs.NAME, "all at once"
TITLES = {"prefill": "Reading a prompt in steps"}


# Tokens of the prompt, the side, and its step size.
Case = tuple[int, str, int]
# Tokens per second, and peak memory in bytes.
Reading = tuple[float, float]


def measure(subject: Subject) -> Iterator[Sequence[Figures]]:
    """Read each prompt into an empty, unbounded cache, up to its first token."""
    tokenizer = theirs.load_tokenizer(subject.directory) if subject.against else None
    sides = {case: _side(subject, case, tokenizer) for case in _cases(subject)}
    for runs in interleave(sides, ROUNDS, subject.tick):
        yield [_figures(case, runs, against=subject.against) for case in runs]


def _cases(subject: Subject) -> list[Case]:
    cases: list[Case] = []
    for length in QUICK_LENGTHS if subject.quick else LENGTHS:
        steps = [step for step in (QUICK_STEPS if subject.quick else STEPS) if step < length]
        cases += [(length, OURS, step) for step in (*steps, length)]
        if subject.against:
            cases.append(_theirs(length))
    return cases


def _theirs(prompt_tokens: int) -> Case:
    return prompt_tokens, THEIRS, min(theirs.DEFAULT_STEP_SIZE, prompt_tokens)


def _side(subject: Subject, case: Case, tokenizer: Any) -> Side[Reading]:
    prompt_tokens, name, step_size = case
    ids = subject.prompt_ids(prompt_tokens)
    if name == THEIRS:
        read = partial(_read_theirs, subject.model, tokenizer)
    else:
        read = partial(_read_ours, subject.model, step_size)
    return Side(
        f"{prompt_tokens:,} tokens, {name}, steps of {step_size:,}",
        run=lambda: read(ids),
        warm_up=lambda: read(ids[:WARM_UP_TOKENS]),
    )


def _read_ours(model: Model, step_size: int, ids: TokenIds) -> Reading:
    settings = GenerationSettings(max_tokens=1, ignore_eos=True)
    reply = Reply(model, ids, model.make_cache(), settings=settings)
    list(generate(reply, step_size=step_size))
    stats = reply.stats
    return stats.prefill_tokens_per_s, stats.peak_memory_bytes


def _read_theirs(model: Model, tokenizer: Any, ids: TokenIds) -> Reading:
    mx.reset_peak_memory()
    last = list(theirs.generate(model, tokenizer, ids, 1))[-1]
    return last.prompt_tps, mx.get_peak_memory()


def _figures(case: Case, runs: dict[Case, list[Reading]], *, against: bool) -> Figures:
    prompt_tokens, name, step_size = case
    reference = _theirs(prompt_tokens) if against else (prompt_tokens, OURS, prompt_tokens)
    others = runs.get(reference, []) if case != reference else []
    speeds, peaks = ([run[n] for run in runs[case]] for n in (0, 1))
    return Figures(
        "prefill",
        {
            "prompt_tokens": prompt_tokens,
            "side": name,
            "step_size": step_size,
            "tokens_per_s": Spread.of(speeds),
            "peak_memory_bytes": Spread.of(peaks),
            "ratio_to": THEIRS if against else ALL,
            "speed_ratio": ratios(speeds, [speed for speed, _ in others]),
            "memory_ratio": ratios(peaks, [peak for _, peak in others]),
        },
    )
