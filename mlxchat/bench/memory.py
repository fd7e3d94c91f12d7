"""Memory over a long generation at a fixed window: it should be a flat line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from mlxchat import platform
from mlxchat.bench.paired import settle
from mlxchat.bench.report import Chart, Point, Table, figure, series
from mlxchat.bench.subject import Subject
from mlxchat.cache import make_cache
from mlxchat.engine.generate import Generation
from mlxchat.settings import GenerationSettings

PROMPT_TOKENS = 16
SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Amounts:
    tokens: int
    window: int


FULL = Amounts(tokens=20_000, window=512)
QUICK = Amounts(tokens=400, window=64)


@dataclass(frozen=True, slots=True)
class SampleFigures:
    """After `tokens`: MLX's memory in use, including weights, MLX's cache of freed memory, and the
    resident size of the process."""

    kind: ClassVar[str] = "sample"

    tokens: int
    max_kv_size: int
    active_bytes: int
    cache_bytes: int
    process_bytes: int


def measure(subject: Subject) -> Iterator[Sequence[SampleFigures]]:
    """Generates in this process, and keeps nothing of the text."""
    amounts = QUICK if subject.quick else FULL
    network = subject.model.network
    settings = GenerationSettings(max_tokens=amounts.tokens, ignore_eos=True)
    cache = make_cache(network, amounts.window)
    ids = subject.prompt_ids(PROMPT_TOKENS)
    settle()
    every = amounts.tokens // SAMPLES
    found: list[SampleFigures] = []
    for count, _ in enumerate(Generation(subject.model, ids, cache, settings=settings), start=1):
        if count % every == 0 and count <= amounts.tokens:
            found.append(_sample(count, amounts.window))
            yield found
            # After the sample is stored: progress that was shown is never lost.
            subject.tick(count, amounts.tokens, "generating")


def _sample(tokens: int, window: int) -> SampleFigures:
    return SampleFigures(
        tokens,
        window,
        mx.get_active_memory(),
        mx.get_cache_memory(),
        platform.process_memory_bytes(),
    )


def tables(found: Sequence[SampleFigures]) -> Sequence[Table]:
    rows = [
        (
            f"{each.tokens:,}",
            *(f"{size / 1e6:,.2f}" for size in (each.active_bytes, each.cache_bytes)),
            f"{each.process_bytes / 1e6:,.2f}",
        )
        for each in found
    ]
    return [
        Table(
            f"Memory over {found[-1].tokens:,} tokens at a window of {found[0].max_kv_size}, MB",
            ("TOKENS", "ACTIVE", "CACHED", "PROCESS"),
            tuple(rows),
            tuple(_in_words(found)),
        )
    ]


def _in_words(found: Sequence[SampleFigures]) -> Iterator[str]:
    """After the window is full, and the first tenth has filled all kinds of caches."""
    settled = [each for each in found if each.tokens > max(found[-1].tokens / 10, each.max_kv_size)]
    if len(settled) < 2:
        return
    for name, sizes in (
        ("active", [each.active_bytes for each in settled]),
        ("process", [each.process_bytes for each in settled]),
    ):
        slope = (sizes[-1] - sizes[0]) / (settled[-1].tokens - settled[0].tokens)
        yield (
            f"From token {settled[0].tokens:,} on, {name} memory is {min(sizes) / 1e6:,.2f} to "
            f"{max(sizes) / 1e6:,.2f} MB, {figure(100 * (max(sizes) / min(sizes) - 1))}% apart; "
            f"from first to last {figure(slope)} bytes per token."
        )


def charts(found: Sequence[SampleFigures]) -> Sequence[Chart]:
    points = [
        (label, Point.single(each.tokens, size / 1e6))
        for label, size_of in (
            ("active", lambda each: each.active_bytes),
            ("cached by MLX", lambda each: each.cache_bytes),
            ("process", lambda each: each.process_bytes),
        )
        for each in found
        for size in (size_of(each),)
    ]
    return [Chart("memory", "A long generation", "tokens generated", "MB", "lines", series(points))]
