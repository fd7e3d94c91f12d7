"""Reading a prompt: speed and peak memory by step size and prompt length.

"all at once" is a single step for the whole prompt; mlx-lm uses its own default.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from mlxchat.bench import theirs
from mlxchat.bench.compare import Comparison, Figures, Side, Spread, ratios
from mlxchat.bench.subject import OURS, THEIRS, Subject
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings
from mlxchat.text.encoder import TokenIds

STEPS, QUICK_STEPS = (64, 128, 256, 512, 1_024, 2_048), (64, 128)
LENGTHS, QUICK_LENGTHS = (512, 4_232), (256,)
ROUNDS = 3
WARM_UP_TOKENS = 32
ALL = "all at once"

# Tokens of the prompt, the side, and its step size.
Case = tuple[int, str, int]
# Tokens per second, and peak memory in bytes.
Reading = tuple[float, float]


def comparisons(subject: Subject) -> list[Comparison[Case, Reading]]:
    """Read each prompt into an empty, unbounded cache, up to its first token."""
    tokenizer = theirs.load_tokenizer(subject.directory) if subject.against else None
    steps, lengths = (QUICK_STEPS, QUICK_LENGTHS) if subject.quick else (STEPS, LENGTHS)
    sides: dict[Case, Side[Reading]] = {}
    for length in lengths:
        for step in (*(each for each in steps if each < length), length):
            sides[length, OURS, step] = _side(subject, length, OURS, step, tokenizer)
        if subject.against:
            sides[_theirs(length)] = _side(subject, *_theirs(length), tokenizer)
    figures_of = partial(_figures, against=subject.against)
    return [Comparison("prefill", "Reading a prompt in steps", sides, ROUNDS, figures_of)]


def _theirs(prompt_tokens: int) -> Case:
    return prompt_tokens, THEIRS, min(theirs.DEFAULT_STEP_SIZE, prompt_tokens)


def _side(
    subject: Subject, prompt_tokens: int, name: str, step_size: int, tokenizer: Any
) -> Side[Reading]:
    read = partial(_read_ours, subject.model, step_size)
    if name == THEIRS:
        read = partial(_read_theirs, subject.model, tokenizer)
    ids = subject.prompt_ids(prompt_tokens)
    return Side(
        f"{prompt_tokens:,} tokens, {name}, steps of {step_size:,}",
        run=lambda: read(ids),
        warm_up=lambda: read(ids[:WARM_UP_TOKENS]),
    )


def _read_ours(model: Model, step_size: int, ids: TokenIds) -> Reading:
    settings = GenerationSettings(max_tokens=1, ignore_eos=True)
    reply = Reply(model, ids, model.make_cache(), settings=settings)
    list(generate(reply, step_size=step_size))
    return reply.stats.prefill_tokens_per_s, reply.stats.peak_memory_bytes


def _read_theirs(model: Model, tokenizer: Any, ids: TokenIds) -> Reading:
    mx.reset_peak_memory()
    return list(theirs.generate(model, tokenizer, ids, 1))[-1].prompt_tps, mx.get_peak_memory()


def _figures(
    case: Case, runs: Mapping[Case, Sequence[Reading]], *, against: bool
) -> Sequence[Figures]:
    prompt_tokens, name, step_size = case
    reference = _theirs(prompt_tokens) if against else (prompt_tokens, OURS, prompt_tokens)
    others = runs.get(reference, []) if case != reference else []
    speeds, peaks = ([run[n] for run in runs[case]] for n in (0, 1))
    return [
        {
            "prompt_tokens": prompt_tokens,
            "side": name,
            "step_size": step_size,
            "tokens_per_s": Spread.of(speeds),
            "peak_memory_bytes": Spread.of(peaks),
            "ratio_to": THEIRS if against else ALL,
            "speed_ratio": ratios(speeds, [speed for speed, _ in others]),
            "memory_ratio": ratios(peaks, [peak for _, peak in others]),
        }
    ]
