"""Many prompts at once: different ones, and ones that share their beginning."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from mlxchat.bench import batch_speed
from mlxchat.bench.batch_speed import OURS, THEIRS, generate_side_by_side, generate_theirs
from mlxchat.bench.paired import Side, Spread, interleave, ratios
from mlxchat.bench.report import Figures, one_after_another
from mlxchat.bench.subject import Subject

OWN_TOKENS = 8
SHARED_ROWS = 32
WARM_UP_PROMPTS, WARM_UP_TOKENS = 2, 4
TITLES = batch_speed.TITLES | {
    "shared": f"Prompts that begin alike, at most {SHARED_ROWS} side by side, seconds for all"
}


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


def measure(subject: Subject) -> Iterator[Sequence[Figures]]:
    amounts = QUICK if subject.quick else FULL
    speed = batch_speed.measure(subject, amounts.rows, amounts.tokens, amounts.rounds)
    return one_after_another((speed, _shared(subject, amounts)))


def _shared(subject: Subject, amounts: Amounts) -> Iterator[Sequence[Figures]]:
    """Greedy generation after prompts that begin alike, without an end token."""
    prompts = sharing_prompts(subject, amounts)
    generators = {OURS: generate_side_by_side}
    if subject.against:
        generators[THEIRS] = generate_theirs
    sides: list[Side[float]] = []
    for name, generate in generators.items():
        rows = min(SHARED_ROWS, len(prompts))
        run = partial(generate, subject, rows=rows, take=lambda _: None)
        timed = partial(_seconds, partial(run, prompts=prompts, tokens=amounts.shared_tokens))
        warm_up = partial(run, prompts=prompts[:WARM_UP_PROMPTS], tokens=WARM_UP_TOKENS)
        sides.append(Side(name, timed, warm_up))
    prompt_tokens = len(subject.model.tokenizer.prompt(prompts[0]).ids)
    for values in interleave(sides, 1, subject.tick):
        yield [
            Figures(
                "shared",
                {
                    "side": side.name,
                    "prompts": amounts.prompts,
                    "shared_tokens": amounts.shared,
                    "prompt_tokens": prompt_tokens,
                    "tokens": amounts.shared_tokens,
                    "seconds": Spread.of(seconds),
                    "times_ours": None if side.name == OURS else ratios(seconds, values[0]),
                },
            )
            for side, seconds in zip(sides, values, strict=True)
            if seconds
        ]


def sharing_prompts(subject: Subject, amounts: Amounts) -> list[str]:
    """Prompts with the same text and then different ends, in about `OWN_TOKENS` tokens each."""
    tokenizer = subject.model.tokenizer
    shared = tokenizer.decode(subject.prompt_ids(amounts.shared).tolist())
    prompts: list[str] = []
    for n in range(amounts.prompts):
        own = tokenizer.encode(f"\n{n:02} is bread, onions, maps or stars?")[:OWN_TOKENS]
        prompts.append(shared + tokenizer.decode(own.tolist()))
    return prompts


def _seconds(run: partial[None]) -> float:
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s
