"""The ranks of one program started by MLX's launcher, and the messages between them.

All messages are sums over the ranks, to which the sender contributes numbers and the others zeros.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import finalize

import mlx.core as mx
import numpy as np

from mlxchat import platform
from mlxchat.distributed.lost import RingSockets, Watchdog
from mlxchat.errors import MlxchatError, RanksError

Method = TypeVar("Method", bound=Callable[..., Any])

# MLX keeps freed buffers for reuse; the other ranks release them after this many messages.
CLEAR_EVERY = 256

# In place of an object's number, this ends the program on the other ranks.
STOP = 0

# What runs on all ranks, by name.
_operations: dict[str, Callable[..., Any]] = {}


def together(method: Method) -> Method:
    """Make a method of an object that has `ranks` and a `number` run on all ranks, each with its
    own shard, when rank 0 calls it. It may not call another such method.

    Positional arguments are JSON values, and are sent. Those given by name are rank 0's own, and
    have defaults. An MlxchatError must be raised by all ranks or none; only rank 0 reports it.
    Raises RanksError if another rank is lost.
    """
    name = method.__name__
    assert name not in _operations
    _operations[name] = method

    @wraps(method)
    def on_all_ranks(shard: Any, *arguments: Any, **own: Any) -> Any:
        ranks: Ranks = shard.ranks
        with ranks.watchdog.losses(), ranks.in_step():
            ranks.send(shard, name, *arguments)
            return method(shard, *arguments, **own)

    return cast(Method, on_all_ranks)


class Ranks:
    """This process among the ranks. `leads` is true for rank 0.

    Raises RanksError if a rank does not arrive or is lost.
    """

    def __init__(self, group: mx.distributed.Group) -> None:
        self.group = group
        self.rank: int = group.rank()
        self.size: int = group.size()
        self.sockets = sockets = RingSockets(self.rank, self.size)
        self.watchdog = Watchdog(self.rank, self.size, sockets)
        # Whether the others are waiting for this rank to finish an operation.
        self.is_in_step = False
        # The number of this object, and of the next one.
        self.number, self._next = 1, 2
        # On the other ranks, what rank 0 uses, by number.
        self._held: dict[int, Any] = {self.number: self}
        self._dropped: list[int] = []

    @classmethod
    def join(cls) -> Ranks:
        """Connect to the other ranks started by the launcher."""
        try:
            return cls(mx.distributed.init(strict=True))
        except RuntimeError as error:
            raise RanksError(f"the ranks cannot connect to each other: {error}") from error

    @property
    def ranks(self) -> Ranks:
        return self

    @property
    def leads(self) -> bool:
        return self.rank == 0

    # Operations

    def add(self, shard: Any) -> int:
        """The number of a new object, the same on all ranks. Once rank 0 no longer uses it, the
        others forget it, with one of the next messages."""
        number, self._next = self._next, self._next + 1
        if self.leads:
            finalize(shard, self._dropped.append, number)
        else:
            self._held[number] = shard
        return number

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """The body is what the others do, too: an exception halfway through leaves the ranks out of
        step, unless all of them raise it."""
        if self.is_in_step:
            raise RanksError("the ranks are out of step after an interruption: restart all of them")
        self.is_in_step = True
        try:
            yield
        except MlxchatError:
            self.is_in_step = self.watchdog.is_off = False
            raise
        self.is_in_step = self.watchdog.is_off = False

    def send(self, shard: Any, name: str, *arguments: Any) -> None:
        """Make the other ranks call this method of their shard."""
        dropped = [self._dropped.pop() for _ in range(len(self._dropped))]
        call = json.dumps([name, arguments, self._next, dropped]).encode()
        with self.watchdog.timeout():
            self.share(mx.array([len(call), shard.number, 0]))
            self._share_bytes(call, len(call))

    def send_token(self, shard: Any, token: mx.array) -> None:
        """Make the other ranks call `step` with `token: (1, 1)`, which may not be known yet: one
        message a token, which nobody waits for."""
        with self.watchdog.timeout():
            self.share(mx.concatenate([mx.array([0, shard.number]), token.reshape(1)]))

    def follow(self) -> None:
        """On another rank: do what rank 0 does until it stops.

        Raises RanksError if a rank is lost. Until a model is loaded, rank 0 may simply exit.
        """
        try:
            with self.watchdog.losses():
                for count, message in enumerate(self._messages()):
                    self._take_part(*message)
                    if count % CLEAR_EVERY == 0:
                        mx.clear_cache()
                self._held.clear()
                # Computation in progress must not outlive the interpreter.
                with self.watchdog.timeout():
                    platform.synchronize()
        except RanksError:
            if not self.watchdog.is_off:
                raise

    def _take_part(self, shard: Any, call: bytes, token: mx.array) -> None:
        if not call:
            shard.step(token.reshape(1, 1))
            return
        name, arguments, self._next, dropped = json.loads(call)
        for number in dropped:
            del self._held[number]
        with suppress(MlxchatError):
            _operations[name](shard, *arguments)

    def _messages(self) -> Iterator[tuple[Any, bytes, mx.array]]:
        """Yield an object with the call or the token that rank 0 has sent for it.

        Waits indefinitely without using the processor, since rank 0 may be waiting for its user.
        The socket shows if rank 0 is gone.
        """
        while True:
            self.watchdog.is_off = len(self._held) == 1
            self.sockets.wait_readable()
            with self.watchdog.timeout():
                message = self.share(mx.zeros((3,)))
                size, number, _ = cast(list[int], message.tolist())
                call = self._share_bytes(b"", size)
            if number == STOP:
                return
            yield self._held[number], call, message[2]

    def stop(self) -> None:
        """Make the others exit normally; if no message reaches them, closed sockets make them."""
        if not self.is_in_step:
            with suppress(RuntimeError), self.watchdog.timeout():
                self.share(mx.array([0, STOP, 0]))
                platform.synchronize()

    # What all ranks know

    def share(self, numbers: mx.array) -> mx.array:
        """The sender's `numbers`, int32, on all ranks; the others pass zeros of the same shape."""
        # Integer sums are exact, and adding zeros changes nothing.
        shared = mx.distributed.all_sum(numbers.astype(mx.int32), group=self.group)
        mx.async_eval(shared)
        return shared

    def gather(self, number: int) -> list[int]:
        """Every rank's number, in rank order. Numbers must be below 2**31."""
        row = mx.zeros((self.size,), dtype=mx.int32)
        row[self.rank] = number
        with self.watchdog.timeout():
            return cast(list[int], self.share(row).tolist())

    def text(self, text: str, rank: int) -> str:
        """The text given by `rank`, on all ranks."""
        data = text.encode() if rank == self.rank else b""
        return self._share_bytes(data, self.gather(len(data))[rank]).decode()

    def _share_bytes(self, data: bytes, size: int) -> bytes:
        """The sender's data on all ranks; the others pass none."""
        if size == 0:
            return b""
        padded = np.zeros(size, np.int32)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        return np.array(self.share(mx.array(padded))).astype(np.uint8).tobytes()
