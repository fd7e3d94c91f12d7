"""Time spent per token on several ranks: each rank's computation without messages, and the messages
without computation. Messages are the `mx.distributed` operations launched by a forward pass.
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


# The stages of computing a token, by the number sent between ranks.
STAGES = dict(enumerate(Spent))


@dataclass(frozen=True, slots=True)
class Message:
    """An operation in a forward pass; `again` launches it once more with as many bytes."""

    size_bytes: int
    again: Callable[[], mx.array]


def lead_timing(network: Leader, cache: SharedCache, spent: Spent, tokens: int) -> TokenTiming:
    """Time the stage `spent` of `tokens` tokens after the contents of `cache`, on all ranks.
    `cache` stays unchanged. Raises RanksError if a rank is lost."""
    with network.ranks.in_step():
        number = list(Spent).index(spent)
        network.ranks.send(Order.TIME, network.number, cache.number, number, tokens)
        return time_stage(network.ranks, network.own, cache, spent, tokens)


def time_stage(
    ranks: Ranks, shard: nn.Module, cache: Cache, spent: Spent, tokens: int
) -> TokenTiming:
    """This rank's part of `lead_timing`; all ranks run it at the same time."""
    messages = _recorded_token(ranks, shard, cache)
    own = Cache(cache).fork()
    times_s: list[float] = []
    for _ in range(tokens):
        with ranks.timeout():
            begun_s = time.perf_counter()
            if spent is Spent.COMPUTING:
                _compute(ranks, shard, own)
            else:
                for message in messages:
                    mx.eval(message.again())
            times_s.append(time.perf_counter() - begun_s)
    # The first rank to finish waits here.
    with ranks.timeout():
        by_rank = ranks.gather(round(statistics.median(times_s) * MICROSECONDS))
    return TokenTiming(
        tuple(each / MICROSECONDS for each in by_rank),
        len(messages),
        sum(message.size_bytes for message in messages),
    )


def _recorded_token(ranks: Ranks, shard: nn.Module, cache: Cache) -> list[Message]:
    """The messages for one token, beginning with the order to compute it."""
    messages: list[Message] = []
    with ranks.timeout(), _replaced(lambda name, real: _recording(name, real, messages)):
        ranks.share(mx.zeros((ORDER_NUMBERS,), mx.int32))
        _, logits = run_shard(ranks, shard, mx.zeros((1, 1), mx.int32), Cache(cache).fork())
        mx.eval(logits)
    return messages


def _compute(ranks: Ranks, shard: nn.Module, cache: Cache) -> None:
    with _replaced(lambda name, _: _stand_in(name, ranks.size)):
        logits = shard(mx.zeros((1, 1), mx.int32), cache=cache)
    mx.eval(logits)


OPERATIONS = ("all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "send", "recv_like")
# The only one that does not take an array.
RECEIVE = "recv"


@contextmanager
def _replaced(make: Callable[[str, Operation], Operation]) -> Iterator[None]:
    """Replace the operations during the body: mlx-lm's models look them up each time."""
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
        # Not the array itself, which would keep everything it depends on alive.
        shape, dtype = first.shape, first.dtype
        messages.append(Message(first.nbytes, lambda: real(mx.zeros(shape, dtype), *given, **how)))
        return real(first, *given, **how)

    return record


def _stand_in(name: str, ranks: int) -> Operation:
    """A local replacement that returns an array of the same size immediately."""

    def give(first: Any, *given: Any, **_: Any) -> mx.array:
        if name == RECEIVE:
            return mx.zeros(first, given[0])
        if name == "all_gather":
            return mx.concatenate([first] * ranks)
        if name == "sum_scatter":
            return first[: first.shape[0] // ranks]
        return first

    return give
