"""Whether quality lasts as a text grows: perplexity by position at a fixed window, for mlxchat, for
mlx-lm's rotating cache and, as the gold standard, after a window computed from scratch.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.nn.losses import cross_entropy

from mlxchat.bench import theirs
from mlxchat.bench.report import Chart, Point, Table, figure, series
from mlxchat.bench.subject import Subject
from mlxchat.cache import make_cache
from mlxchat.settings import DEFAULT_KEEP

STRETCH = 64  # tokens recomputed at each place
OURS, THEIRS, GOLD = "mlxchat", "mlx-lm rotating", "recomputed"


@dataclass(frozen=True, slots=True)
class Amounts:
    """In tokens; `part` is the length over which perplexity is averaged."""

    tokens: int
    part: int
    window: int
    step_size: int


FULL = Amounts(tokens=40_000, part=1_000, window=512, step_size=256)
QUICK = Amounts(tokens=768, part=128, window=128, step_size=64)


@dataclass(frozen=True, slots=True)
class PartFigures:
    """Perplexity from the token `from_token` on and, at `places` in it, of tokens after a
    recomputed window, with our perplexity of the same tokens."""

    kind: ClassVar[str] = "part"

    from_token: int
    tokens: int
    perplexity: float | None
    mlx_lm_perplexity: float | None
    same_tokens_perplexity: float | None
    recomputed_perplexity: float | None


@dataclass(frozen=True, slots=True)
class WholeFigures:
    """`ratio_to_recomputed` compares perplexities over all places, with its standard error;
    `ratio_to_mlx_lm` compares them over the whole text."""

    kind: ClassVar[str] = "whole"

    tokens: int
    max_kv_size: int
    keep: int
    prefill_step_size: int
    places: int
    ratio_to_recomputed: float | None
    standard_error: float | None
    ratio_to_mlx_lm: float | None


@dataclass(frozen=True, slots=True)
class _Part:
    """Negative log-likelihoods."""

    from_token: int
    ours: list[float]
    theirs: list[float]
    same: list[float]
    recomputed: list[float]


def losses(
    network: nn.Module, cache: list[Any], ids: np.ndarray, step_size: int
) -> Iterator[float]:
    """Negative log-likelihood of each token after the first, in steps of `step_size`."""
    for start in range(0, len(ids) - 1, step_size):
        step = ids[start : start + step_size]
        targets = mx.array(ids[start + 1 : start + step_size + 1])
        logits = network(mx.array(step)[None], cache=cache)[0, : targets.size]
        loss = cross_entropy(logits.astype(mx.float32), targets)
        mx.eval(loss, [layer.state for layer in cache])
        values: Any = loss.tolist()
        yield from values


def perplexity(values: Sequence[float]) -> float | None:
    """None if it overflows a float."""
    try:
        return math.exp(statistics.fmean(values))
    except (OverflowError, ValueError):
        return None


def measure(subject: Subject) -> Iterator[Sequence[PartFigures | WholeFigures]]:
    """Nothing is timed, so one run is enough. All sides read a part before any reads the next."""
    amounts = QUICK if subject.quick else FULL
    network = subject.model.network
    ids = subject.text_ids(2 * amounts.window, amounts.tokens + 1)
    ours = losses(network, make_cache(network, amounts.window), ids, amounts.step_size)
    others: Iterator[float] = iter(())
    if subject.against:
        rotating = theirs.rotating_cache(network, amounts.window, DEFAULT_KEEP)
        others = losses(network, rotating, ids, amounts.step_size)
    parts: list[_Part] = []
    for start in range(0, len(ids) - 1, amounts.part):
        subject.tick(start, len(ids), f"perplexity from token {start:,}")
        mine = list(islice(ours, amounts.part))
        part = _Part(start, mine, list(islice(others, amounts.part)), [], [])
        # In the middle, where a whole window precedes it.
        place = start + (len(mine) - STRETCH) // 2
        if len(mine) >= STRETCH and place + 1 + STRETCH // 2 >= amounts.window:
            part.same.extend(mine[place - start : place - start + STRETCH])
            part.recomputed.extend(_recomputed(network, ids, place, amounts.window))
        parts.append(part)
        yield [*map(_figures, parts), _whole(parts, amounts)]
    subject.tick(len(ids), len(ids), "")


def _recomputed(network: nn.Module, ids: np.ndarray, place: int, window: int) -> list[float]:
    """Of the tokens from `place` on, with a full window before each on average: they are read
    together, so the first sees half a stretch less than a window, and the last half more."""
    start = place + 1 + STRETCH // 2 - window
    logits = network(mx.array(ids[start : place + STRETCH])[None])[0, -STRETCH:]
    targets = mx.array(ids[place + 1 : place + STRETCH + 1])
    values: Any = cross_entropy(logits.astype(mx.float32), targets).tolist()
    return values


def _figures(part: _Part) -> PartFigures:
    return PartFigures(
        part.from_token,
        len(part.ours),
        perplexity(part.ours),
        perplexity(part.theirs) if part.theirs else None,
        perplexity(part.same) if part.same else None,
        perplexity(part.recomputed) if part.recomputed else None,
    )


def _whole(parts: Sequence[_Part], amounts: Amounts) -> WholeFigures:
    gaps = [
        statistics.fmean(part.same) - statistics.fmean(part.recomputed)
        for part in parts
        if part.same
    ]
    ours = [value for part in parts for value in part.ours]
    others = [value for part in parts for value in part.theirs]
    ratio = perplexity(gaps) if gaps else None
    error = None
    if ratio is not None and len(gaps) > 1:
        error = ratio * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return WholeFigures(
        tokens=len(ours),
        max_kv_size=amounts.window,
        keep=DEFAULT_KEEP,
        prefill_step_size=amounts.step_size,
        places=len(gaps),
        ratio_to_recomputed=ratio,
        standard_error=error,
        ratio_to_mlx_lm=_ratio_of_means(ours, others),
    )


def _ratio_of_means(ours: Sequence[float], others: Sequence[float]) -> float | None:
    if not others:
        return None
    return perplexity([statistics.fmean(ours) - statistics.fmean(others)])


def tables(found: Sequence[PartFigures | WholeFigures]) -> Sequence[Table]:
    parts = [each for each in found if isinstance(each, PartFigures)]
    whole = next(each for each in found if isinstance(each, WholeFigures))
    rows = [
        (
            f"{each.from_token:,}",
            _cell(each.perplexity),
            _cell(each.mlx_lm_perplexity),
            _ratio(each.perplexity, each.mlx_lm_perplexity),
            _cell(each.same_tokens_perplexity),
            _cell(each.recomputed_perplexity),
            _ratio(each.same_tokens_perplexity, each.recomputed_perplexity),
        )
        for each in parts
    ]
    headers = ("FROM TOKEN", "MLXCHAT", "MLX-LM", "RATIO", "OURS THERE", "RECOMPUTED", "RATIO")
    return [
        Table(
            f"Perplexity of {whole.tokens:,} tokens, by {parts[0].tokens:,}, at a window of "
            f"{whole.max_kv_size}, {whole.keep} kept, steps of {whole.prefill_step_size}",
            headers,
            tuple(rows),
            tuple(_in_words(whole)),
        )
    ]


def _in_words(whole: WholeFigures) -> Iterator[str]:
    if whole.ratio_to_mlx_lm is not None:
        yield f"Overall: {figure(whole.ratio_to_mlx_lm)} times that of mlx-lm's rotating cache."
    if whole.ratio_to_recomputed is not None:
        error = whole.standard_error
        error_text = "" if error is None else f" (standard error {figure(error)})"
        yield (
            f"At {whole.places} places, {STRETCH} tokens each: {figure(whole.ratio_to_recomputed)}"
            f"{error_text} times that of tokens after a window computed from scratch."
        )


def _cell(value: float | None) -> str:
    return "" if value is None else figure(value)


def _ratio(a: float | None, b: float | None) -> str:
    return "" if a is None or not b else figure(a / b)


def charts(found: Sequence[PartFigures | WholeFigures]) -> Sequence[Chart]:
    parts = [each for each in found if isinstance(each, PartFigures)]

    def chart(name: str, title: str, picked: dict[str, str]) -> Chart:
        points = [
            (label, Point.single(each.from_token, value))
            for label, pick in picked.items()
            for each in parts
            if (value := getattr(each, pick)) is not None
        ]
        return Chart(name, title, "from token", "perplexity", "lines", series(points))

    # In a separate chart, because these are other tokens.
    return [
        chart("stream", "A long text", {OURS: "perplexity", THEIRS: "mlx_lm_perplexity"}),
        chart(
            "stream-recomputed",
            "The same tokens, after windows computed from scratch",
            {OURS: "same_tokens_perplexity", GOLD: "recomputed_perplexity"},
        ),
    ]
