"""Generation: speed and memory over time, with and without a window."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx

from mlxchat.bench import theirs
from mlxchat.bench.compare import Comparison, Figures, Side, Spread, ratios
from mlxchat.bench.subject import OURS, THEIRS, Subject
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply
from mlxchat.settings import GenerationSettings

PROMPT_TOKENS = 16
WARM_UP_TOKENS = 8
TITLE = "Generating, by stretches; active memory is MLX's at the end of each"


@dataclass(frozen=True, slots=True)
class Stretches:
    """`stretches` of `stretch` tokens each, at a window of `window`."""

    stretch: int
    stretches: int
    window: int
    rounds: int


FULL = Stretches(200, stretches=5, window=512, rounds=5)
QUICK = Stretches(16, stretches=4, window=32, rounds=3)

# The side, and its window.
Case = tuple[str, int | None]
# For each stretch, tokens per second, and MLX's active memory in bytes at its end.
Timed = list[tuple[float, int]]


def comparisons(subject: Subject) -> list[Comparison[Case, Timed]]:
    """Greedy generation after a short prompt, without an end token."""
    tokenizer = theirs.load_tokenizer(subject.directory) if subject.against else None
    amounts = QUICK if subject.quick else FULL
    sides = {
        (name, window): _side(subject, (name, window), amounts, tokenizer)
        for window in (None, amounts.window)
        for name in ((OURS, THEIRS) if subject.against else (OURS,))
    }
    figures_of = partial(_figures, subject, amounts)
    return [Comparison("stretch", TITLE, sides, amounts.rounds, figures_of)]


def _side(subject: Subject, case: Case, amounts: Stretches, tokenizer: Any) -> Side[Timed]:
    name, window = case

    def run(stretch: int, stretches: int) -> Timed:
        # One more, since the first token ends the prefill.
        return list(_timed(_tokens(subject, case, stretch * stretches + 1, tokenizer), stretch))

    return Side(
        f"{name}, " + ("no window" if window is None else f"window {window}"),
        run=lambda: run(amounts.stretch, amounts.stretches),
        warm_up=lambda: run(WARM_UP_TOKENS, 1),
    )


def _tokens(subject: Subject, case: Case, max_tokens: int, tokenizer: Any) -> Iterable[Any]:
    (name, window), model = case, subject.model
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
    subject: Subject, amounts: Stretches, case: Case, runs: Mapping[Case, Sequence[Timed]]
) -> list[Figures]:
    name, window = case
    others = runs.get((THEIRS, window), []) if name == OURS else []
    is_kept = name == OURS or theirs.keeps_window(subject.model.network, window)
    found: list[Figures] = []
    for n in range(amounts.stretches):
        speeds = [run[n][0] for run in runs[case]]
        found.append(
            {
                "side": name,
                "max_kv_size": window,
                "window_kept": is_kept,
                "from_token": n * amounts.stretch,
                "tokens": amounts.stretch,
                "tokens_per_s": Spread.of(speeds),
                "active_memory_bytes": Spread.of([run[n][1] for run in runs[case]]),
                "speed_ratio": ratios(speeds, [run[n][0] for run in others]),
            }
        )
    return found
