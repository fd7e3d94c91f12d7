"""Generation: speed and memory over time, with and without a window."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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

PROMPT_TOKENS = 16
WARM_UP_TOKENS = 8
OURS, THEIRS = "mlxchat", theirs.NAME


@dataclass(frozen=True, slots=True)
class Stretches:
    """`stretches` of `stretch` tokens each, at a window of `window`."""

    stretch: int
    stretches: int
    window: int
    rounds: int


FULL = Stretches(200, stretches=5, window=512, rounds=5)
QUICK = Stretches(16, stretches=4, window=32, rounds=3)
TITLES = {"stretch": "Generating, by stretches; active memory is MLX's at the end of each"}

# The side, and its window.
Case = tuple[str, int | None]
# For each stretch, tokens per second, and MLX's active memory in bytes at its end.
Timed = list[tuple[float, int]]


def measure(subject: Subject) -> Iterator[Sequence[Figures]]:
    """Greedy generation after a short prompt, without an end token."""
    tokenizer = theirs.load_tokenizer(subject.directory) if subject.against else None
    amounts = QUICK if subject.quick else FULL
    names = (OURS, THEIRS) if subject.against else (OURS,)
    sides = {
        (name, window): _side(subject, (name, window), amounts, tokenizer)
        for window in (None, amounts.window)
        for name in names
    }
    for runs in interleave(sides, amounts.rounds, subject.tick):
        yield [
            _figures(subject.model, case, n, runs, amounts)
            for case in runs
            for n in range(amounts.stretches)
        ]


def _side(subject: Subject, case: Case, amounts: Stretches, tokenizer: Any) -> Side[Timed]:
    name, window = case

    def run(stretch: int, stretches: int) -> Timed:
        # One more, since the first token ends the prefill.
        tokens = _tokens(subject.model, case, stretch * stretches + 1, tokenizer, subject)
        return list(_timed(tokens, stretch))

    return Side(
        f"{name}, " + ("no window" if window is None else f"window {window}"),
        run=lambda: run(amounts.stretch, amounts.stretches),
        warm_up=lambda: run(WARM_UP_TOKENS, 1),
    )


def _tokens(
    model: Model, case: Case, max_tokens: int, tokenizer: Any, subject: Subject
) -> Iterable[Any]:
    name, window = case
    ids = subject.prompt_ids(PROMPT_TOKENS)
    if name == THEIRS:
        return theirs.generate(model, tokenizer, ids, max_tokens, max_kv_size=window)
    settings = GenerationSettings(max_tokens=max_tokens, ignore_eos=True)
    return generate(Reply(model, ids, model.make_cache(window), settings=settings))


def _timed(tokens: Iterable[Any], stretch: int) -> Iterator[tuple[float, int]]:
    """Wall-clock times between tokens, including work that is only done now and then."""
    begun_s = 0.0
    for count, _ in enumerate(tokens):
        if count % stretch == 0:
            now_s = time.perf_counter()
            if count:
                yield stretch / (now_s - begun_s), mx.get_active_memory()
            begun_s = now_s


def _figures(
    model: Model, case: Case, n: int, runs: dict[Case, list[Timed]], amounts: Stretches
) -> Figures:
    name, window = case
    others = runs.get((THEIRS, window), []) if name == OURS else []
    speeds = [run[n][0] for run in runs[case]]
    return Figures(
        "stretch",
        {
            "side": name,
            "max_kv_size": window,
            "window_kept": name == OURS or theirs.keeps_window(model.network, window),
            "from_token": n * amounts.stretch,
            "tokens": amounts.stretch,
            "tokens_per_s": Spread.of(speeds),
            "active_memory_bytes": Spread.of([run[n][1] for run in runs[case]]),
            "speed_ratio": ratios(speeds, [run[n][0] for run in others]),
        },
    )
