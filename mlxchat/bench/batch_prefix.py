"""Prompts that share most of their tokens: side by side, by mlx-lm, and in a shell loop."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mlxchat.bench.batch_speed import THEIRS, generate_side_by_side, generate_theirs
from mlxchat.bench.paired import Side, Spread, interleave, ratios
from mlxchat.bench.report import Figures
from mlxchat.bench.startup import process_seconds
from mlxchat.bench.subject import Subject

OURS, LOOP, CACHED_LOOP = "mlxchat", "shell loop", "shell loop, prefix cache"
OWN_TOKENS = 8
ROWS = 32
# Processes that are timed of a shell loop.
PROCESSES = 3
WARM_UP_PROMPTS, WARM_UP_TOKENS = 2, 4
TITLES = {
    "shared": f"Prompts that begin alike, at most {ROWS} side by side, seconds for all; of a shell "
    f"loop, {PROCESSES} processes are timed and multiplied"
}


@dataclass(frozen=True, slots=True)
class Amounts:
    prompts: int
    shared: int
    tokens: int
    rounds: int


def measure(subject: Subject, amounts: Amounts) -> Iterator[Sequence[Figures]]:
    """Greedy generation after prompts that begin alike, without an end token."""
    prompts = sharing_prompts(subject, amounts)
    sides = list(_sides(subject, amounts, prompts))
    prompt_tokens = len(subject.model.tokenizer.prompt(prompts[0]).ids)
    for values in interleave(sides, amounts.rounds, subject.tick):
        yield [
            Figures(
                "shared",
                {
                    "side": side.name,
                    "prompts": amounts.prompts,
                    "shared_tokens": amounts.shared,
                    "prompt_tokens": prompt_tokens,
                    "tokens": amounts.tokens,
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


def _sides(subject: Subject, amounts: Amounts, prompts: Sequence[str]) -> Iterator[Side[float]]:
    tokens = amounts.tokens
    kinds: dict[str, Any] = {OURS: generate_side_by_side}
    if subject.against:
        kinds[THEIRS] = generate_theirs
    for name, generate in kinds.items():
        run = partial(generate, subject, rows=min(ROWS, len(prompts)), take=lambda _: None)
        yield Side(
            name,
            run=partial(_seconds, partial(run, prompts=prompts, tokens=tokens)),
            warm_up=partial(run, prompts=prompts[:WARM_UP_PROMPTS], tokens=WARM_UP_TOKENS),
        )
    for name in (LOOP, CACHED_LOOP):
        loop = Loop(subject, prompts, tokens, with_cache=name == CACHED_LOOP)
        yield Side(name, run=loop.seconds, warm_up=lambda: None)


def _seconds(run: Any) -> float:
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s


class Loop:
    """A process of `mlxchat generate` for each prompt, of which only a few are run."""

    def __init__(
        self, subject: Subject, prompts: Sequence[str], tokens: int, *, with_cache: bool
    ) -> None:
        self._prompts = prompts
        self._with_cache = with_cache
        self._scratch = subject.scratch
        self._command = [
            *(sys.executable, "-m", "mlxchat", "generate", "-m", str(subject.directory)),
            *(*subject.program_options(), "--offline", "--no-json"),
            *("--temp", "0", "-n", str(tokens), "--ignore-eos", "--no-lookup"),
            "--prefix-cache" if with_cache else "--no-prefix-cache",
        ]
        self._rounds = 0

    def seconds(self) -> float:
        """The loop over all prompts; the first fills the prefix cache, if there is one."""
        self._rounds += 1
        caches = self._scratch / f"caches-{self._rounds}"
        first_s, *others_s = (
            process_seconds([*self._command, "--", prompt], self._environment(caches))[1]
            for prompt in self._prompts[:PROCESSES]
        )
        if not self._with_cache:
            others_s.append(first_s)
        others = len(self._prompts) - self._with_cache
        return self._with_cache * first_s + others * sum(others_s) / len(others_s)

    def _environment(self, caches: Path) -> Mapping[str, str]:
        return {**os.environ, "XDG_CACHE_HOME": str(caches)} if self._with_cache else os.environ
