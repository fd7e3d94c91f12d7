"""How much of a token's time ranks spend on communication: `decode` under MLX's launcher."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx
from mlx import nn

from mlxchat.bench.paired import Side, Spread, differences, interleave, ratios
from mlxchat.bench.report import Table, middle, range_of
from mlxchat.bench.subject import Subject
from mlxchat.cache import Cache
from mlxchat.engine.loops import prefill
from mlxchat.models.model import Peers, Spent, TokenTiming

PROMPT_TOKENS = 16
WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class CommunicationFigures:
    """Seconds per token. `computing_s` is the time without messages: of the slowest rank, or the
    sum of all ranks if they form a `pipeline` and so take turns. `communication_s` is the rest,
    including waiting, and `share` its share of the total. `messages_s` is the time for the same
    messages with nothing to compute."""

    kind: ClassVar[str] = "communication"

    ranks: int
    pipeline: bool
    token_s: Spread
    computing_s: Spread
    computing_by_rank_s: tuple[float, ...]
    communication_s: Spread
    share: Spread
    messages: int
    message_bytes: int
    messages_s: Spread


@dataclass(frozen=True, slots=True)
class _Run:
    """The result of one run of a side."""

    token_s: float
    timing: TokenTiming | None = None


def measure(
    subject: Subject, peers: Peers, tokens: int, rounds: int
) -> Iterator[Sequence[CommunicationFigures]]:
    """Measure in turn the total, the computing, and the messages, at the same token positions."""
    network, cache = subject.model.network, subject.model.make_cache()
    prefill(network, cache, subject.prompt_ids(PROMPT_TOKENS), step_size=PROMPT_TOKENS)

    def whole(tokens: int) -> _Run:
        return _Run(_whole_s(network, cache, tokens))

    def part(spent: Spent, tokens: int) -> _Run:
        timing = peers.time_token(cache, spent, tokens)
        by_rank_s = timing.by_rank_s
        in_turn = peers.pipelined and spent is Spent.COMPUTING
        return _Run(sum(by_rank_s) if in_turn else max(by_rank_s), timing)

    sides = [
        Side("a token", lambda: whole(tokens), lambda: whole(WARM_UP_TOKENS)),
        *(
            Side(
                f"its {spent}",
                lambda spent=spent: part(spent, tokens),
                lambda spent=spent: part(spent, WARM_UP_TOKENS),
            )
            for spent in Spent
        ),
    ]
    for values in interleave(sides, rounds, subject.tick):
        if all(values):
            yield [_figures(peers, *values)]


def _whole_s(network: nn.Module, cache: Cache, tokens: int) -> float:
    own = cache.fork()
    times_s: list[float] = []
    for _ in range(tokens):
        begun_s = time.perf_counter()
        mx.eval(network(mx.zeros((1, 1), mx.int32), own))
        times_s.append(time.perf_counter() - begun_s)
    return statistics.median(times_s)


def _figures(
    peers: Peers, wholes: list[_Run], computings: list[_Run], messages: list[_Run]
) -> CommunicationFigures:
    token_s, computing_s = [run.token_s for run in wholes], [run.token_s for run in computings]
    communication_s = differences(token_s, computing_s)
    rests_s = [max(a - b, 0.0) for a, b in zip(token_s, computing_s, strict=False)]
    share = ratios(rests_s, token_s)
    computing, sent = computings[-1].timing, messages[-1].timing
    assert communication_s is not None
    assert share is not None
    assert computing is not None
    assert sent is not None
    return CommunicationFigures(
        ranks=peers.ranks,
        pipeline=peers.pipelined,
        token_s=Spread.of(token_s),
        computing_s=Spread.of(computing_s),
        computing_by_rank_s=computing.by_rank_s,
        communication_s=communication_s,
        share=share,
        messages=sent.messages,
        message_bytes=sent.message_bytes,
        messages_s=Spread.of([run.token_s for run in messages]),
    )


def table(found: CommunicationFigures) -> Table:
    """One table per figure."""
    times = (
        ("total", found.token_s),
        ("computing", found.computing_s),
        ("communication and waiting", found.communication_s),
        ("messages alone", found.messages_s),
    )
    way = "some of the layers each" if found.pipeline else "a part of each layer"
    return Table(
        f"A token on {found.ranks} ranks, {way}, {found.token_s.runs} runs each",
        ("PART", "MS", "RANGE"),
        tuple((name, middle(spread, 1e-3), range_of(spread, 1e-3)) for name, spread in times),
        (
            f"Communication is {found.share.median:.0%} of the time. Rank 0 takes part in "
            f"{found.messages} messages per token, {found.message_bytes:,} bytes in total.",
        ),
    )
