"""Many prompts at once: different ones, compared with the same prompts one after the other, and
ones that share their beginning."""

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np

from mlxchat.app.opening import Loaded
from mlxchat.app.side_by_side import SideBySide
from mlxchat.bench import theirs
from mlxchat.bench.compare import Comparison, Figures, Side, Spread, ratios
from mlxchat.bench.subject import OURS, SENTENCES, Subject
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply
from mlxchat.errors import ModelError
from mlxchat.models.model import Model
from mlxchat.request import BatchInput, BatchRequest, Setup
from mlxchat.rows.output import Pending
from mlxchat.rows.read import Rows
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings
from mlxchat.units import count

ALONE = "one by one"
PROMPT_TOKENS = 40
OWN_TOKENS = 8
SHARED_ROWS = 32
WARM_UP_PROMPTS, WARM_UP_TOKENS = 2, 4
DIFFERENT = (
    "Different prompts, tokens generated per second, reading the prompts included; gain over one "
    "by one"
)
SHARED = f"Prompts that begin alike, at most {SHARED_ROWS} side by side, seconds for all"

# Called with the number of tokens generated since the last call.
Take = Callable[[int], object]
# Generates after each prompt: the number of rows side by side, and of tokens for each row.
Generate = Callable[[Subject, Sequence[str], int, int, Take], None]

# The side, and its rows.
Case = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Generated:
    seconds: float
    tokens: int
    ttft_s: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class Amounts:
    """`tokens` for each of `rows` different prompts, in each of `rounds`. Of `prompts` that share
    `shared` tokens, `shared_tokens` for each."""

    rows: tuple[int, ...]
    tokens: int
    rounds: int
    prompts: int
    shared: int = 1_000
    shared_tokens: int = 16


FULL = Amounts(rows=(1, 8, 32), tokens=64, rounds=3, prompts=64)
QUICK = Amounts(rows=(1, 8), tokens=16, rounds=2, prompts=8)


def comparisons(
    subject: Subject,
) -> list[Comparison[Case, Generated] | Comparison[str, Generated]]:
    """Greedy generation, without an end token."""
    amounts = QUICK if subject.quick else FULL
    return [_different(subject, amounts), _shared(subject, amounts)]


def _side(
    generate: Generate, subject: Subject, prompts: Sequence[str], case: Case, tokens: int
) -> Side[Generated]:
    name, rows = case
    run = partial(_generated, generate, subject)
    # Of prompts with a long beginning in common, few.
    first = prompts[: WARM_UP_PROMPTS if len(prompts) > rows else rows]
    return Side(
        f"{count(rows, 'row')}, {name}",
        run=lambda: run(prompts, rows, tokens),
        warm_up=lambda: run(first, rows, WARM_UP_TOKENS),
    )


def _different(subject: Subject, amounts: Amounts) -> Comparison[Case, Generated]:
    prompts = _different_prompts(subject.model, max(amounts.rows))
    generators: dict[str, Generate] = {OURS: _side_by_side, ALONE: _one_by_one}
    if subject.against:
        generators[theirs.NAME] = _by_mlx_lm
    sides = {
        (name, rows): _side(generate, subject, prompts[:rows], (name, rows), amounts.tokens)
        for rows in amounts.rows
        for name, generate in generators.items()
    }
    prompt_tokens = len(subject.model.tokenizer.prompt(prompts[0]).ids)

    def figures_of(case: Case, runs: Mapping[Case, Sequence[Generated]]) -> Sequence[Figures]:
        name, rows = case

        def speeds(side: str) -> list[float]:
            return [run.tokens / run.seconds for run in runs.get((side, rows), [])]

        own = runs[case]
        return [
            {
                "rows": rows,
                "side": name,
                "prompt_tokens": prompt_tokens,
                "tokens": amounts.tokens,
                "tokens_per_s": Spread.of(speeds(name)),
                "ttft_s": Spread.of([run.ttft_s for run in own]),
                "peak_memory_bytes": Spread.of([float(run.peak_memory_bytes) for run in own]),
                "gain": None if name == ALONE else ratios(speeds(name), speeds(ALONE)),
                "speed_ratio": None
                if name == theirs.NAME
                else ratios(speeds(name), speeds(theirs.NAME)),
            }
        ]

    return Comparison("rows", DIFFERENT, sides, amounts.rounds, figures_of)


def _different_prompts(model: Model, number: int) -> list[str]:
    """Prompts of about PROMPT_TOKENS tokens each; no two begin alike."""
    random = np.random.default_rng(0)
    words = " ".join(SENTENCES).split()
    texts = [" ".join([str(n), *random.permutation(words)]) for n in range(number)]
    ids = [np.resize(model.tokenizer.encode(text), PROMPT_TOKENS) for text in texts]
    return [model.tokenizer.decode(each.tolist()) for each in ids]


def _generated(
    generate: Generate, subject: Subject, prompts: Sequence[str], rows: int, tokens: int
) -> Generated:
    """Generate, timed. All sides must do the same work."""
    taken = 0
    first_s: float | None = None

    def take(new: int) -> None:
        nonlocal taken, first_s
        if new and first_s is None:
            first_s = time.perf_counter()
        taken += new

    mx.reset_peak_memory()
    began_s = time.perf_counter()
    generate(subject, prompts, rows, tokens, take)
    seconds = time.perf_counter() - began_s
    assert taken == len(prompts) * tokens, f"{taken} tokens, not {len(prompts) * tokens}"
    assert first_s is not None
    return Generated(seconds, taken, first_s - began_s, mx.get_peak_memory())


def _side_by_side(
    subject: Subject, prompts: Sequence[str], rows: int, tokens: int, take: Take
) -> None:
    """As `mlxchat batch` does, without files. Raises ModelError if a row fails."""
    model, settings = subject.model, CacheSettings(None)
    request = BatchRequest(
        setup=Setup(prefix_cache=False),
        rows=rows,
        max_tokens=tokens,
        ignore_eos=True,
        lookup=False,
    )
    cache = model.make_cache(None, settings.keep)
    loaded = Loaded(model.name, model, settings, SamplingSettings(seed=0), cache)
    lines = "\n".join(json.dumps({"prompt": prompt}) for prompt in prompts)
    pending = Pending(Rows(BatchInput(), io.BytesIO(lines.encode())), lambda _: None)
    runner = SideBySide(request, loaded, pending, lambda: False, subject.notify)
    taken = 0
    for result in runner.results():
        if result is not None and result.error is not None:
            raise ModelError(result.error)
        take(pending.figures.generated_tokens - taken)
        taken = pending.figures.generated_tokens


def _one_by_one(
    subject: Subject, prompts: Sequence[str], rows: int, tokens: int, take: Take
) -> None:
    settings = GenerationSettings(max_tokens=tokens, ignore_eos=True, lookup=False)
    model = subject.model
    for prompt in prompts:
        ids = model.tokenizer.prompt(prompt).ids
        for token in generate(Reply(model, ids, model.make_cache(), settings=settings)):
            take(token.id is not None)


def _by_mlx_lm(
    subject: Subject, prompts: Sequence[str], rows: int, tokens: int, take: Take
) -> None:
    model = subject.model
    ids = [model.tokenizer.prompt(prompt).ids for prompt in prompts]
    for new in theirs.generate_batch(model, ids, tokens, rows):
        take(new)


def _shared(subject: Subject, amounts: Amounts) -> Comparison[str, Generated]:
    tokenizer = subject.model.tokenizer
    begin = tokenizer.decode(subject.prompt_ids(amounts.shared).tolist())
    prompts: list[str] = []
    for n in range(amounts.prompts):
        own = tokenizer.encode(f"\n{n:02} is bread, onions, maps or stars?")[:OWN_TOKENS]
        prompts.append(begin + tokenizer.decode(own.tolist()))
    generators: dict[str, Generate] = {OURS: _side_by_side}
    if subject.against:
        generators[theirs.NAME] = _by_mlx_lm
    rows = min(SHARED_ROWS, len(prompts))
    sides = {
        name: _side(generate, subject, prompts, (name, rows), amounts.shared_tokens)
        for name, generate in generators.items()
    }
    prompt_tokens = len(tokenizer.prompt(prompts[0]).ids)

    def figures_of(name: str, runs: Mapping[str, Sequence[Generated]]) -> Sequence[Figures]:
        own, ours = ([run.seconds for run in runs[side]] for side in (name, OURS))
        return [
            {
                "side": name,
                "prompts": amounts.prompts,
                "shared_tokens": amounts.shared,
                "prompt_tokens": prompt_tokens,
                "tokens": amounts.shared_tokens,
                "seconds": Spread.of(own),
                "times_ours": None if name == OURS else ratios(own, ours),
            }
        ]

    return Comparison("shared", SHARED, sides, 1, figures_of)
