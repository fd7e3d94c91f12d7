"""Memory of rows side by side: of long rows in a window, and over many short rows. On a tiny
network, because only the bookkeeping counts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from mlxchat import platform
from mlxchat.bench.paired import settle
from mlxchat.bench.report import Chart, Point, Table, figure, series
from mlxchat.bench.scheduler import run_rows
from mlxchat.bench.subject import Subject
from mlxchat.bench.tiny import tiny_config, with_tiny_network
from mlxchat.cache import kv_bytes_per_token
from mlxchat.errors import ModelError
from mlxchat.models.model import Model

ROWS = 8
MANY_ROWS = 32
PROMPT_CHARS = 8
TOKENS = 4
SAMPLES = 10


@dataclass(frozen=True, slots=True)
class Amounts:
    """`lengths` of rows in tokens, at a window of `window`; the number of `short` rows."""

    window: int
    lengths: tuple[int, ...]
    short: int


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """`rows` of `generated_tokens` each: the most bytes that their keys and values took side by
    side, and the bytes of `rows` full windows."""

    kind: ClassVar[str] = "window"

    rows: int
    max_kv_size: int
    generated_tokens: int
    cache_bytes: int
    bound_bytes: int


@dataclass(frozen=True, slots=True)
class SampleFigures:
    """After `finished` short rows: MLX's memory in use, MLX's cache of freed memory, and the
    resident size of the process."""

    kind: ClassVar[str] = "sample"

    finished: int
    active_bytes: int
    cache_bytes: int
    process_bytes: int


def measure(
    subject: Subject, amounts: Amounts
) -> Iterator[Sequence[WindowFigures | SampleFigures]]:
    found: list[WindowFigures | SampleFigures] = []
    for part in (_in_a_window(subject, amounts), _over_many_rows(subject, amounts.short)):
        for figures in part:
            found.append(figures)
            yield found


def _in_a_window(subject: Subject, amounts: Amounts) -> Iterator[WindowFigures]:
    prompts = [f"{row}" for row in range(ROWS)]
    model = _tiny_model(subject, prompts)
    token_bytes = kv_bytes_per_token(model.network, model.dtype)
    for n, tokens in enumerate(amounts.lengths):
        subject.tick(n, len(amounts.lengths), f"rows of {tokens:,} tokens")
        most = 0

        def on_tokens(new: int, cache_bytes: int) -> None:
            nonlocal most
            most = max(most, cache_bytes)

        for result in run_rows(
            model,
            prompts,
            tokens,
            ROWS,
            window=amounts.window,
            raw=True,
            on_tokens=on_tokens,
            notify=subject.notify_once,
        ):
            _check(result.error)
        bound = ROWS * amounts.window * token_bytes
        yield WindowFigures(ROWS, amounts.window, tokens, most, bound)


def _over_many_rows(subject: Subject, rows: int) -> Iterator[SampleFigures]:
    prompts = [f"{row:0{PROMPT_CHARS}}" for row in range(rows)]
    model = _tiny_model(subject, prompts)
    settle()
    every = max(rows // SAMPLES, 1)
    results = run_rows(model, prompts, TOKENS, MANY_ROWS, raw=True, notify=subject.notify_once)
    for finished, result in enumerate(results, start=1):
        _check(result.error)
        if finished % every == 0:
            yield SampleFigures(
                finished,
                mx.get_active_memory(),
                mx.get_cache_memory(),
                platform.process_memory_bytes(),
            )
            subject.tick(finished, rows, "short rows")


def _tiny_model(subject: Subject, prompts: Sequence[str]) -> Model:
    """A tiny network that knows the tokens of these prompts."""
    encode = subject.model.tokenizer.encode
    largest = max(int(encode(prompt).max()) for prompt in prompts)
    return with_tiny_network(subject.model, tiny_config(vocabulary=max(largest + 1, 288)))


def _check(error: str | None) -> None:
    if error is not None:
        raise ModelError(error)


def tables(found: Sequence[WindowFigures | SampleFigures]) -> list[Table]:
    windows = [each for each in found if isinstance(each, WindowFigures)]
    samples = [each for each in found if isinstance(each, SampleFigures)]
    return [
        *([_window_table(windows)] if windows else []),
        *([_sample_table(samples)] if samples else []),
    ]


def _window_table(windows: Sequence[WindowFigures]) -> Table:
    rows = [
        (
            f"{each.generated_tokens:,}",
            f"{each.cache_bytes / 1e6:,.2f}",
            f"{each.bound_bytes / 1e6:,.2f}",
        )
        for each in windows
    ]
    first = windows[0]
    return Table(
        f"Keys and values of {first.rows} rows at a window of {first.max_kv_size} on a tiny "
        "network, MB at most",
        ("TOKENS PER ROW", "MB", "MB OF FULL WINDOWS"),
        tuple(rows),
        ("A row that fills its window continues alone, in one more window.",),
    )


def _sample_table(samples: Sequence[SampleFigures]) -> Table:
    rows = [
        (
            f"{each.finished:,}",
            *(
                f"{size / 1e6:,.2f}"
                for size in (each.active_bytes, each.cache_bytes, each.process_bytes)
            ),
        )
        for each in samples
    ]
    return Table(
        f"Memory over {samples[-1].finished:,} short rows, {MANY_ROWS} side by side, on a tiny "
        "network, MB",
        ("ROWS", "ACTIVE", "CACHED", "PROCESS"),
        tuple(rows),
        tuple(_in_words(samples)),
    )


def _in_words(samples: Sequence[SampleFigures]) -> Iterator[str]:
    if len(samples) < 2:
        return
    first, last = samples[0], samples[-1]
    for name, before, after in (
        (
            "MLX's",
            first.active_bytes + first.cache_bytes,
            last.active_bytes + last.cache_bytes,
        ),
        ("process", first.process_bytes, last.process_bytes),
    ):
        slope = (after - before) / (last.finished - first.finished)
        yield (
            f"From row {first.finished:,} to row {last.finished:,}, {name} memory changes by "
            f"{figure((after - before) / 1e6)} MB: {figure(slope)} bytes per row."
        )


def charts(found: Sequence[WindowFigures | SampleFigures]) -> list[Chart]:
    points = [
        (label, Point.single(each.finished, size / 1e6))
        for each in found
        if isinstance(each, SampleFigures)
        for label, size in (
            ("active", each.active_bytes),
            ("cached by MLX", each.cache_bytes),
            ("process", each.process_bytes),
        )
    ]
    if not points:
        return []
    return [Chart("batch-memory", "Many rows", "rows finished", "MB", "lines", series(points))]
