"""The ranks of one program started by MLX's launcher, and the messages between them.

All messages are collective operations of MLX's backends. Rank 0 sends by contributing its numbers
to a sum, to which the others contribute zeros. `leader` and `follow` give them meaning.
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

# An evaluation that takes longer than this means that a rank hangs. The longest legitimate one is a
# prefill step of a large model.
TIMEOUT_S = 60.0

# When a neighbour closes its connection, MLX usually fails immediately, but a race between its
# threads sometimes loses the error and it waits forever.
GONE_S = 3.0

# A rank that gives up closes its sockets, and its neighbours then exit too. One that has not after
# this long is the one that hangs.
RESPONSE_S = 6.0

# Closed sockets make the waiting operation fail; if it does not, the process exits after this.
GRACE_S = 5.0

# The unit for memory sizes in messages, whose numbers have 31 bits.
KIB = 1024
MAX_SENT = 2**31 - 1

# Number of dropped objects that fit into an order.
DROPPED = 3
# Size of an order: its code, four numbers and the dropped objects.
ORDER_NUMBERS = 5 + DROPPED


class Order(IntEnum):
    """What rank 0 can order the others to do."""

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
    PREFIX = 11


class Ranks:
    """This process among the ranks. `leads` is true for rank 0.

    Raises RanksError if a rank does not arrive or is lost.
    """

    def __init__(self, group: mx.distributed.Group, sockets: RingSockets | None) -> None:
        self.group = group
        self.rank: int = group.rank()
        self.size: int = group.size()
        self._sockets = sockets
        self._numbers = count(1)
        self._dropped: list[int] = []
        # Whether the others are waiting for this rank to finish an order.
        self.is_in_step = False
        self._is_giving_up = False
        self._lost: RanksError | None = None
        # Held while finding out which rank was lost.
        self._judging = threading.Lock()
        self._watchdog = _Watchdog(self._timeout_s, self._give_up)

    @classmethod
    def join(cls) -> Ranks:
        """Connect to the other ranks started by the launcher."""
        before = open_sockets()
        try:
            group = mx.distributed.init(strict=True)
        except RuntimeError as error:
            raise RanksError(f"the ranks cannot connect to each other: {error}") from error
        return cls(group, RingSockets.opened_since(before, group.rank(), group.size()))

    @property
    def leads(self) -> bool:
        return self.rank == 0

    # Orders

    def new_number(self) -> int:
        """A new number by which all ranks know an object."""
        return next(self._numbers)

    def drop(self, number: int) -> None:
        """Make the others forget an object, along with one of the next orders. Thread-safe."""
        self._dropped.append(number)

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Defer signals while the body gives an order and does its own part of it: an exception
        halfway through would leave the ranks out of step."""
        if self.is_in_step:
            raise RanksError("the ranks are out of step after an interruption: restart all of them")
        with undisturbed():
            self.is_in_step = True
            yield
            self.is_in_step = False

    def stop(self) -> None:
        """Make the others exit normally; if no message reaches them, closed sockets make them."""
        if not self.is_in_step:
            with suppress(RuntimeError), self.timeout():
                self.send(Order.STOP)
                platform.synchronize()

    def send(self, order: Order, *numbers: int) -> None:
        """Send an order with up to four numbers, without waiting for it to arrive."""
        dropped = [self._dropped.pop() for _ in range(min(DROPPED, len(self._dropped)))]
        numbers = (*numbers, *[0] * (4 - len(numbers)))
        sent = self._sum(mx.array([order, *numbers, *dropped, *[0] * (DROPPED - len(dropped))]))
        with self.timeout():
            mx.async_eval(sent)

    def receive(self) -> tuple[Order, list[int], list[int]]:
        """Wait for the next order; return it with its four numbers and the objects to forget.

        Waits indefinitely without using the processor, since rank 0 may be waiting for its user.
        The socket shows if rank 0 is gone.
        """
        if self._sockets is not None:
            self._sockets.wait_readable()
        with self.timeout():
            received: Any = self._sum(mx.zeros((ORDER_NUMBERS,), dtype=mx.int32)).tolist()
        return Order(received[0]), received[1:5], [number for number in received[5:] if number]

    def share(self, ids: mx.array) -> mx.array:
        """Rank 0's `ids`, int32, on all ranks; the others pass zeros of the same shape."""
        shared = self._sum(ids)
        mx.async_eval(shared)
        return shared

    def text(self, text: str = "", rank: int = 0) -> str:
        """The text given by `rank`, on all ranks."""
        data = np.frombuffer(text.encode() if rank == self.rank else b"", np.uint8)
        length = int(self.gather(len(data))[rank])
        padded = np.zeros(length, np.int32)
        padded[: len(data)] = data
        shared = np.array(self._sum(mx.array(padded))) if length else padded
        return shared.astype(np.uint8).tobytes().decode()

    def gather(self, number: int) -> list[int]:
        """Every rank's number, in rank order. Numbers must be below 2**31."""
        row = mx.zeros((self.size,), dtype=mx.int32)
        row[self.rank] = number
        gathered: Any = self._sum(row).tolist()
        return gathered

    def min_free_memory_bytes(self) -> int:
        """The minimum of the free memory over all ranks, in bytes."""
        return min(self.gather(platform.free_memory_bytes() // KIB)) * KIB

    def differing(self, value: object) -> list[int]:
        """The ranks whose `value`, a JSON value, differs from rank 0's."""
        data = json.dumps(value, sort_keys=True).encode()
        digests = self.gather(int.from_bytes(hashlib.blake2b(data, digest_size=3).digest()))
        return [rank for rank, digest in enumerate(digests) if digest != digests[0]]

    def _sum(self, array: mx.array) -> mx.array:
        # Integer sums are exact, and adding zeros changes nothing.
        return mx.distributed.all_sum(array.astype(mx.int32), group=self.group)

    # Failures

    @contextmanager
    def timeout(self) -> Iterator[None]:
        """Give up if the body, which evaluates, takes longer than TIMEOUT_S, or longer than GONE_S
        after a neighbour has gone."""
        self._watchdog.begin(None)
        try:
            yield
        finally:
            self._watchdog.end()

    def expect(self, array: mx.array) -> None:
        """Like `timeout`, until the small `array` has been evaluated."""
        self._watchdog.begin(array)

    def lost(self) -> RanksError:
        """The error to raise after an operation has failed."""
        with self._judging:
            self._lost = self._lost or self._gone()
            return self._lost

    def _gone(self) -> RanksError:
        gone = None if self._sockets is None else self._sockets.gone()
        if self.size == 2 or gone is None:
            return RanksError(f"{_one_of(self._others)} is gone: all ranks exit")
        # It may have exited because its other neighbour did, which that one's neighbours report.
        return RanksError(f"rank {gone} is gone or has lost another rank: all ranks exit")

    def _hanging(self) -> RanksError:
        """The error naming the ranks that may hang: this rank only sees its neighbours."""
        suspects = self._others
        if self._sockets is not None:
            silent = self._sockets.silent(RESPONSE_S)
            suspects = silent or self._others - self._sockets.neighbours or self._others
        return RanksError(
            f"{_one_of(suspects)} has not responded for {TIMEOUT_S:.0f} s: all ranks exit"
        )

    @property
    def _others(self) -> set[int]:
        return set(range(self.size)) - {self.rank}

    def is_loss(self, error: BaseException) -> bool:
        """Whether `error` is due to a lost rank: it is MLX's, or raised while this rank gives up.

        The launcher ends all ranks once the first has exited, some before they could report why.
        """
        message = str(error)
        return self._is_giving_up or (
            isinstance(error, RuntimeError)
            and any(name in message for name in ("[ring]", "[jaccl]", "[mpi]", "[nccl]"))
        )

    def _timeout_s(self) -> float:
        gone = self._sockets is not None and self._sockets.gone() is not None
        return GONE_S if gone else TIMEOUT_S

    def _give_up(self, after_s: float) -> None:
        """Called from another thread while this process waits."""
        self._is_giving_up = True
        with self._judging:
            self._lost = self._hanging() if after_s == TIMEOUT_S else self._gone()
        if self._sockets is not None:
            # This makes the waiting operation fail, and cleanup run as after any error.
            self._sockets.close()
            time.sleep(GRACE_S)
        sys.stderr.write(f"mlxchat: error: {self.lost()}\n")
        sys.stderr.flush()
        os._exit(ExitStatus.FAILURE)


def _one_of(ranks: set[int]) -> str:
    *others, last = map(str, sorted(ranks))
    return f"rank {', '.join(others)} or {last}" if others else f"rank {last}"


class _Watchdog:
    """Calls `give_up` from its own thread if an operation does not finish in time."""

    def __init__(self, timeout: Callable[[], float], give_up: Callable[[float], None]) -> None:
        self._timeout = timeout
        self._give_up = give_up
        self._begun: tuple[float, mx.array | None] | None = None
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

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
            timeout_s = self._timeout()
            if time.monotonic() - begun[0] < timeout_s or _is_evaluated(begun[1]):
                continue
            if self._begun is begun:
                self._give_up(timeout_s)
                return


def _is_evaluated(array: mx.array | None) -> bool:
    """Whether an array launched earlier is evaluated by now, even if no one has looked at it."""
    if array is None:
        return False
    evaluated = threading.Event()

    def look() -> None:
        # The error is reported where the array is used.
        with suppress(RuntimeError):
            mx.eval(array)
            evaluated.set()

    threading.Thread(target=look, daemon=True).start()
    return evaluated.wait(1)
