"""The ranks of one program under MLX's launcher, and what they send one another.

Everything goes through collective operations of MLX's backends. Rank 0 sends: it puts its numbers
into a sum to which the others add zeros. What they mean is `leader`'s and `follow`'s business.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from itertools import count
from typing import Any

import mlx.core as mx
import numpy as np

from mlxchat import platform
from mlxchat.distributed.sockets import RingSockets, open_sockets
from mlxchat.errors import ExitStatus, RanksError
from mlxchat.handlers import undisturbed

# An evaluation that takes longer than this means that a rank hangs. The longest that is meant to
# happen is one prefill step of a large model.
PATIENCE_S = 60.0

# Where a neighbour's connection has ended, MLX fails at once; but now and then, between two threads
# of its own, that is lost and it waits for ever.
GONE_S = 3.0

# A rank that gives up closes its sockets, and its neighbours end as well. One that has not after so
# many seconds is the one that hangs.
ANSWER_S = 6.0

# What waits fails when its sockets are closed. Where it does not, the process ends so much later.
GRACE_S = 5.0

# Memory is sent in this unit: numbers have 31 bits.
KIB = 1024

# How many dropped objects fit beside one order.
DROPPED = 3
# What an order takes: itself, four numbers, and those.
ORDER_NUMBERS = 5 + DROPPED


class Order(IntEnum):
    """What rank 0 has the others do beside it."""

    STOP = 1
    LOAD = 2
    NEW_CACHE = 3
    FORWARD = 4
    FORK = 5
    REWIND = 6
    EVICT = 7
    FREE_MEMORY = 8
    SAVE = 9
    RESTORE = 10
    TIME = 11
    PREFIX = 12


class Ranks:
    """This process's place among all. `leads` is whether it is rank 0.

    Raises RanksError if a rank does not come, or is lost.
    """

    def __init__(self, group: mx.distributed.Group, sockets: RingSockets | None) -> None:
        self.group = group
        self.rank: int = group.rank()
        self.size: int = group.size()
        self._sockets = sockets
        self._numbers = count(1)
        self._dropped: list[int] = []
        # Whether the others wait for what is still to be done here.
        self.is_in_step = False
        self._is_giving_up = False
        self._lost: RanksError | None = None
        # While it is held, it is being found out who was lost.
        self._judging = threading.Lock()
        self._patience = _Patience(self._patience_for, self._give_up)

    @classmethod
    def join(cls) -> Ranks:
        """Meet the other ranks that the launcher has started."""
        before = open_sockets()
        try:
            group = mx.distributed.init(strict=True)
        except RuntimeError as error:
            raise RanksError(f"the ranks cannot reach one another: {error}") from error
        return cls(group, RingSockets.opened_since(before, group.rank(), group.size()))

    @property
    def leads(self) -> bool:
        return self.rank == 0

    # Orders

    def new_number(self) -> int:
        """By which an object is known to all ranks."""
        return next(self._numbers)

    def drop(self, number: int) -> None:
        """Let the others forget an object, beside one of the next orders. From any thread."""
        self._dropped.append(number)

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """While the body gives an order and does its own part of it, signals wait: an exception in
        the middle would leave the others behind."""
        if self.is_in_step:
            raise RanksError("the ranks were interrupted out of step: start all of them again")
        with undisturbed():
            self.is_in_step = True
            yield
            self.is_in_step = False

    def stop(self) -> None:
        """Let the others end well; if no message reaches them any more, their sockets close."""
        if not self.is_in_step:
            with suppress(RuntimeError), self.patience():
                self.send(Order.STOP)
                platform.synchronize()

    def send(self, order: Order, *numbers: int) -> None:
        """Give an order with up to four numbers, without waiting for it to arrive."""
        dropped = [self._dropped.pop() for _ in range(min(DROPPED, len(self._dropped)))]
        numbers = (*numbers, *[0] * (4 - len(numbers)))
        sent = self._sum(mx.array([order, *numbers, *dropped, *[0] * (DROPPED - len(dropped))]))
        with self.patience():
            mx.async_eval(sent)

    def receive(self) -> tuple[Order, list[int], list[int]]:
        """Wait for the next order; its four numbers, and the objects that are to be forgotten.

        Waits for ever, without using the processor: rank 0 may be waiting for its user. That it is
        gone, its socket tells.
        """
        if self._sockets is not None:
            self._sockets.wait_for_news()
        with self.patience():
            heard: Any = self._sum(mx.zeros((ORDER_NUMBERS,), dtype=mx.int32)).tolist()
        return Order(heard[0]), heard[1:5], [number for number in heard[5:] if number]

    def share(self, ids: mx.array) -> mx.array:
        """Rank 0's `ids`, int32, on all ranks: the others give zeros of the same shape."""
        shared = self._sum(ids)
        mx.async_eval(shared)
        return shared

    def text(self, text: str = "", rank: int = 0) -> str:
        """The text that `rank` gives, on all ranks."""
        data = np.frombuffer(text.encode() if rank == self.rank else b"", np.uint8)
        length = int(self.gather(len(data))[rank])
        padded = np.zeros(length, np.int32)
        padded[: len(data)] = data
        shared = np.array(self._sum(mx.array(padded))) if length else padded
        return shared.astype(np.uint8).tobytes().decode()

    def gather(self, number: int) -> list[int]:
        """What every rank gives, in the order of the ranks. Below 2**31."""
        row = mx.zeros((self.size,), dtype=mx.int32)
        row[self.rank] = number
        gathered: Any = self._sum(row).tolist()
        return gathered

    def least_free_memory_bytes(self) -> int:
        """What the rank that has least has free."""
        return min(self.gather(platform.free_memory_bytes() // KIB)) * KIB

    def differing(self, value: object) -> list[int]:
        """The ranks whose `value`, fit for JSON, is another than rank 0's."""
        data = json.dumps(value, sort_keys=True).encode()
        digests = self.gather(int.from_bytes(hashlib.blake2b(data, digest_size=3).digest()))
        return [rank for rank, digest in enumerate(digests) if digest != digests[0]]

    def _sum(self, array: mx.array) -> mx.array:
        # Sums of integers lose nothing; nor do the zeros that are added.
        return mx.distributed.all_sum(array.astype(mx.int32), group=self.group)

    # What can go wrong

    @contextmanager
    def patience(self) -> Iterator[None]:
        """While the body evaluates, give up where it takes longer than PATIENCE_S, or longer than
        GONE_S once a neighbour is gone."""
        self._patience.begin(None)
        try:
            yield
        finally:
            self._patience.end()

    def expect(self, array: mx.array) -> None:
        """As `patience`, until the small `array`, which is being evaluated, is there."""
        self._patience.begin(array)

    def lost(self) -> RanksError:
        """What to raise where an operation has failed."""
        with self._judging:
            self._lost = self._lost or self._gone()
            return self._lost

    def _gone(self) -> RanksError:
        gone = None if self._sockets is None else self._sockets.gone()
        if self.size == 2 or gone is None:
            return RanksError(f"{_one_of(self._others)} is gone: all ranks end")
        # It may have ended because its other neighbour has: that one's neighbours tell.
        return RanksError(f"rank {gone} is gone, or has lost another rank: all ranks end")

    def _hanging(self) -> RanksError:
        """Who does not answer, as far as that can be seen from here: neighbours can."""
        suspects = self._others
        if self._sockets is not None:
            silent = self._sockets.silent(ANSWER_S)
            suspects = silent or self._others - self._sockets.neighbours or self._others
        return RanksError(
            f"{_one_of(suspects)} has not answered for {PATIENCE_S:.0f} s: all ranks end"
        )

    @property
    def _others(self) -> set[int]:
        return set(range(self.size)) - {self.rank}

    def is_loss(self, error: BaseException) -> bool:
        """Whether `error` is MLX's, of a rank that was lost, or comes while this one gives up: the
        launcher ends all ranks once the first has ended, some before they could say why."""
        message = str(error)
        return self._is_giving_up or (
            isinstance(error, RuntimeError)
            and any(name in message for name in ("[ring]", "[jaccl]", "[mpi]", "[nccl]"))
        )

    def _patience_for(self) -> float:
        gone = self._sockets is not None and self._sockets.gone() is not None
        return GONE_S if gone else PATIENCE_S

    def _give_up(self, after_s: float) -> None:
        """Called while this process waits, from another thread."""
        self._is_giving_up = True
        with self._judging:
            self._lost = self._hanging() if after_s == PATIENCE_S else self._gone()
        if self._sockets is not None:
            # The operation that waits fails, and what is open is closed as after any error.
            self._sockets.close()
            time.sleep(GRACE_S)
        sys.stderr.write(f"mlxchat: error: {self.lost()}\n")
        sys.stderr.flush()
        os._exit(ExitStatus.FAILURE)


def _one_of(ranks: set[int]) -> str:
    *most, last = map(str, sorted(ranks))
    return f"one of the ranks {', '.join(most)} and {last}" if most else f"rank {last}"


class _Patience:
    """Calls `give_up`, in a thread of its own, where what was begun does not end in time."""

    def __init__(self, patience: Callable[[], float], give_up: Callable[[float], None]) -> None:
        self._patience = patience
        self._give_up = give_up
        self._begun: tuple[float, mx.array | None] | None = None
        threading.Thread(target=self._watch, name="patience", daemon=True).start()

    def begin(self, array: mx.array | None) -> None:
        self._begun = time.monotonic(), array

    def end(self) -> None:
        self._begun = None

    def _watch(self) -> None:
        while True:
            time.sleep(1)
            begun = self._begun
            if begun is None or time.monotonic() - begun[0] < GONE_S:
                continue
            patience_s = self._patience()
            if time.monotonic() - begun[0] < patience_s or _is_there(begun[1]):
                continue
            if self._begun is begun:
                self._give_up(patience_s)
                return


def _is_there(array: mx.array | None) -> bool:
    """Whether an array that was to be evaluated has been: nobody may have looked at it since."""
    if array is None:
        return False
    there = threading.Event()

    def look() -> None:
        # That it failed is told where it is used.
        with suppress(RuntimeError):
            mx.eval(array)
            there.set()

    threading.Thread(target=look, daemon=True).start()
    return there.wait(1)
