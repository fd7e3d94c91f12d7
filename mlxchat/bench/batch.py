"""Many prompts at once, compared with one after the other; and ones that share their beginning."""

import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np

from mlxchat.app.batch_run import SideBySide
from mlxchat.app.opening import Loaded
from mlxchat.bench import theirs
from mlxchat.bench.compare import Comparison, Figures, Side, Spread, ratios
from mlxchat.bench.subject import OURS, SENTENCES, THEIRS, Subject
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
SPEED = "tokens generated per second, reading the prompts included"
DIFFERENT = f"Different prompts, {SPEED}; gain over one by one"
SHARED = f"Prompts that begin alike, at most {SHARED_ROWS} side by side, {SPEED}"

# Generates after each prompt: the number of rows side by side, and of tokens for each row. Yields
# the numbers of tokens as they are generated.
Generate = Callable[[Subject, Sequence[str], int, int], Iterator[int]]

# The side, and its rows.
Case = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Generated:
    tokens_per_s: float
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


def comparisons(subject: Subject) -> list[Comparison[Case, Generated]]:
    """Greedy generation, without an end token."""
    amounts = QUICK if subject.quick else FULL
    different = _different_prompts(subject.model, max(amounts.rows))
    by_rows = {rows: different[:rows] for rows in amounts.rows}
    shared = {min(SHARED_ROWS, amounts.prompts): _shared_prompts(subject, amounts)}
    sides: dict[str, Generate] = {OURS: _together}
    if subject.against:
        sides[THEIRS] = theirs.generate_batch
    return [
        Comparison(
            "rows",
            DIFFERENT,
            _sides(sides | {ALONE: _one_by_one}, subject, by_rows, amounts.tokens),
            amounts.rounds,
            partial(_figures, subject, by_rows, amounts.tokens),
        ),
        Comparison(
            "shared",
            SHARED,
            _sides(sides, subject, shared, amounts.shared_tokens),
            1,
            partial(_figures, subject, shared, amounts.shared_tokens),
        ),
    ]


def _sides(
    generators: Mapping[str, Generate],
    subject: Subject,
    prompts: Mapping[int, Sequence[str]],
    tokens: int,
) -> dict[Case, Side[Generated]]:
    """`tokens` after each of the prompts, which are given for each number of rows."""
    return {
        (name, rows): Side(
            f"{count(rows, 'row')}, {name}",
            run=partial(_generated, generate, subject, texts, rows, tokens),
            warm_up=partial(
                _generated, generate, subject, texts[:WARM_UP_PROMPTS], rows, WARM_UP_TOKENS
            ),
        )
        for rows, texts in prompts.items()
        for name, generate in generators.items()
    }


def _figures(
    subject: Subject,
    prompts: Mapping[int, Sequence[str]],
    tokens: int,
    case: Case,
    runs: Mapping[Case, Sequence[Generated]],
) -> Sequence[Figures]:
    (name, rows), own = case, runs[case]

    def ratio_to(other: str) -> Spread | None:
        others = () if other == name else runs.get((other, rows), ())
        return ratios(speeds, [run.tokens_per_s for run in others])

    speeds = [run.tokens_per_s for run in own]
    return [
        {
            "rows": rows,
            "side": name,
            "prompts": len(prompts[rows]),
            "prompt_tokens": len(subject.model.tokenizer.prompt(prompts[rows][0]).ids),
            "tokens": tokens,
            "tokens_per_s": Spread.of(speeds),
            "ttft_s": Spread.of([run.ttft_s for run in own]),
            "peak_memory_bytes": Spread.of([float(run.peak_memory_bytes) for run in own]),
            "gain": ratio_to(ALONE),
            "speed_ratio": ratio_to(THEIRS),
        }
    ]


def _different_prompts(model: Model, number: int) -> list[str]:
    """Prompts of about PROMPT_TOKENS tokens each; no two begin alike."""
    random = np.random.default_rng(0)
    words = " ".join(SENTENCES).split()
    texts = [" ".join([str(n), *random.permutation(words)]) for n in range(number)]
    ids = [np.resize(model.tokenizer.encode(text), PROMPT_TOKENS) for text in texts]
    return [model.tokenizer.decode(each.tolist()) for each in ids]


def _shared_prompts(subject: Subject, amounts: Amounts) -> list[str]:
    tokenizer = subject.model.tokenizer
    begin = tokenizer.decode(subject.prompt_ids(amounts.shared).tolist())
    texts = [f"\n{n:02} is bread, onions, maps or stars?" for n in range(amounts.prompts)]
    return [begin + tokenizer.decode(tokenizer.encode(each)[:OWN_TOKENS]) for each in texts]


def _generated(
    generate: Generate, subject: Subject, prompts: Sequence[str], rows: int, tokens: int
) -> Generated:
    """Generate, timed. All sides must do the same work."""
    taken, first_s = 0, 0.0
    mx.reset_peak_memory()
    began_s = time.perf_counter()
    for new in generate(subject, prompts, rows, tokens):
        first_s = first_s or (time.perf_counter() if new else 0.0)
        taken += new
    seconds = time.perf_counter() - began_s
    assert taken == len(prompts) * tokens, f"{taken} tokens, not {len(prompts) * tokens}"
    return Generated(taken / seconds, first_s - began_s, mx.get_peak_memory())


def _together(subject: Subject, prompts: Sequence[str], rows: int, tokens: int) -> Iterator[int]:
    """As `mlxchat batch` does, without files. Raises ModelError if a row fails."""
    model, settings = subject.model, CacheSettings(None)
    request = BatchRequest(
        setup=Setup(prefix_cache=False), rows=rows, max_tokens=tokens, ignore_eos=True, lookup=False
    )
    cache = model.make_cache(None, settings.keep)
    loaded = Loaded(model.name, model, settings, SamplingSettings(seed=0), cache)
    lines = "\n".join(json.dumps({"prompt": prompt}) for prompt in prompts)
    pending = Pending(Rows(BatchInput(), io.BytesIO(lines.encode())), lambda _: None)
    taken = 0
    for result in SideBySide(request, loaded, pending, lambda: False, subject.notify).results():
        if result is not None and result.error is not None:
            raise ModelError(result.error)
        yield pending.figures.generated_tokens - taken
        taken = pending.figures.generated_tokens


def _one_by_one(subject: Subject, prompts: Sequence[str], rows: int, tokens: int) -> Iterator[int]:
    settings = GenerationSettings(max_tokens=tokens, ignore_eos=True, lookup=False)
    model = subject.model
    for prompt in prompts:
        ids = model.tokenizer.prompt(prompt).ids
        for token in generate(Reply(model, ids, model.make_cache(), settings=settings)):
            yield token.id is not None
