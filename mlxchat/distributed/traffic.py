"""What a token takes of its ranks: each one's computing without a message, its messages without the
computing. The messages are the operations of `mx.distributed` that a forward has launched.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxchat.cache import Cache
from mlxchat.distributed.leader import Leader, SharedCache, run_shard
from mlxchat.distributed.ranks import ORDER_NUMBERS, Order, Ranks
from mlxchat.models.model import Spent, TokenTiming

MICROSECONDS = 1e6

Operation = Callable[..., mx.array]


# What a token's time is spent on, by the number that ranks send one another.
STAGES = dict(enumerate(Spent))


@dataclass(frozen=True, slots=True)
class Message:
    """An operation of a forward; `again` launches it once more, for as many bytes."""

    size_bytes: int
    again: Callable[[], mx.array]


def lead_timing(network: Leader, cache: SharedCache, spent: Spent, tokens: int) -> TokenTiming:
    """Let all ranks time what so many tokens are `spent` on at once, each after what
    `cache` holds, which stays as it is. Raises RanksError if one is gone."""
    with network.ranks.in_step():
        number = list(Spent).index(spent)
        network.ranks.send(Order.TIME, network.number, cache.number, number, tokens)
        return time_stage(network.ranks, network.own, cache, spent, tokens)


def time_stage(
    ranks: Ranks, shard: nn.Module, cache: Cache, spent: Spent, tokens: int
) -> TokenTiming:
    """As `lead_timing`, on this rank; the others do it at the same time."""
    messages = _recorded_token(ranks, shard, cache)
    own = Cache(cache).fork()
    times_s: list[float] = []
    for _ in range(tokens):
        with ranks.patience():
            begun_s = time.perf_counter()
            if spent is Spent.COMPUTING:
                _compute(ranks, shard, own)
            else:
                for message in messages:
                    mx.eval(message.again())
            times_s.append(time.perf_counter() - begun_s)
    # Whoever is done first waits here.
    with ranks.patience():
        by_rank = ranks.gather(round(statistics.median(times_s) * MICROSECONDS))
    return TokenTiming(
        tuple(each / MICROSECONDS for each in by_rank),
        len(messages),
        sum(message.size_bytes for message in messages),
    )


def _recorded_token(ranks: Ranks, shard: nn.Module, cache: Cache) -> list[Message]:
    """The messages of a token, from the order to compute it on."""
    messages: list[Message] = []
    with ranks.patience(), _replaced(lambda name, real: _recording(name, real, messages)):
        ranks.share(mx.zeros((ORDER_NUMBERS,), mx.int32))
        _, logits = run_shard(ranks, shard, mx.zeros((1, 1), mx.int32), Cache(cache).fork())
        mx.eval(logits)
    return messages


def _compute(ranks: Ranks, shard: nn.Module, cache: Cache) -> None:
    with _replaced(lambda name, _: _stand_in(name, ranks.size)):
        logits = shard(mx.zeros((1, 1), mx.int32), cache=cache)
    mx.eval(logits)


OPERATIONS = ("all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "send", "recv_like")
# The one that is given no array.
RECEIVE = "recv"


@contextmanager
def _replaced(make: Callable[[str, Operation], Operation]) -> Iterator[None]:
    """While the body launches forwards. mlx-lm's models look the operations up each time."""
    real = {name: getattr(mx.distributed, name) for name in (*OPERATIONS, RECEIVE)}
    try:
        for name, operation in real.items():
            setattr(mx.distributed, name, make(name, operation))
        yield
    finally:
        for name, operation in real.items():
            setattr(mx.distributed, name, operation)


def _recording(name: str, real: Operation, messages: list[Message]) -> Operation:
    def record(first: Any, *given: Any, **how: Any) -> mx.array:
        if name == RECEIVE:
            made = real(first, *given, **how)
            messages.append(Message(made.nbytes, lambda: real(first, *given, **how)))
            return made
        # Not the array: that would hold on to all that it comes from.
        shape, dtype = first.shape, first.dtype
        messages.append(Message(first.nbytes, lambda: real(mx.zeros(shape, dtype), *given, **how)))
        return real(first, *given, **how)

    return record


def _stand_in(name: str, ranks: int) -> Operation:
    """As much as the operation would give, at once."""

    def give(first: Any, *given: Any, **_: Any) -> mx.array:
        if name == RECEIVE:
            return mx.zeros(first, given[0])
        if name == "all_gather":
            return mx.concatenate([first] * ranks)
        if name == "sum_scatter":
            return first[: first.shape[0] // ranks]
        return first

    return give
