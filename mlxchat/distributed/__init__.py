"""One model on several processes, the ranks, which all run the same program. MLX is the transport.

Rank 0 alone reads and writes: the others get its texts, its decision to stop and the tokens that it
draws, compute the same with their shards of the model and of each cache, and print nothing.
Whatever depends on a clock, on memory or on a disk is agreed on. Only `app` knows of this; `Alone`
in `models.model` is what the rest sees.

Read `Ranks` first: the messages, all of them sums to which the sender contributes numbers and the
others zeros. `lost` is what happens if a rank is gone or hangs, `load` how a model is divided.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import TypeVar, cast

import mlx.core as mx
import numpy as np

from mlxchat import platform
from mlxchat.distributed.lost import RingSockets, Watchdog
from mlxchat.errors import DeviceError, MlxchatError, RanksError, SnapshotError
from mlxchat.models.model import Alone
from mlxchat.paths import __version__

T = TypeVar("T")

# In place of a number, this ends the program on the other ranks.
STOP = -1


class Ranks(Alone):
    """This process among the ranks. Use it in one thread, and in the same order on all ranks.

    All methods raise RanksError if a rank is lost, and once rank 0 has stopped.
    """

    def __init__(self, group: mx.distributed.Group) -> None:
        self.group = group
        self.rank = group.rank()
        self.size = group.size()
        self._is_aligned = True
        self._sockets = RingSockets(self.rank, self.size)
        self.watchdog = Watchdog(self.rank, self.size, self._sockets)
        # In the middle of a computation: there is no message that the others would read.
        self._is_computing = False
        # Whether rank 0 has made this one exit.
        self.is_stopped = False

    @classmethod
    def join(cls) -> Ranks:
        """Connect to the other ranks started by the launcher."""
        try:
            ranks = cls(mx.distributed.init(strict=True))
        except RuntimeError as error:
            raise RanksError(f"the ranks cannot connect to each other: {error}") from error
        ranks.check_same(
            f"{__version__} {version('mlx')} {version('mlx-lm')}",
            "different versions of mlxchat, mlx or mlx-lm: make them the same",
        )
        return ranks

    @property
    def at_rest(self) -> bool:
        return self._is_aligned and not self.watchdog.has_lost

    # What all ranks know

    def lead(self, number: int) -> int:
        if self.leads:
            mx.async_eval(self._sum(mx.array([number], mx.int32)))
            self._begin()
            return number
        # Wait for rank 0 without using the processor: it may be waiting for its user. What was
        # launched also makes the socket readable.
        self._begin()
        with self.watchdog.losses():
            platform.synchronize()
        self.done()
        self._sockets.wait_readable()
        self._begin()
        if not self._sockets.neighbours:
            # Another backend does not show how long rank 0 waits for its user.
            self.watchdog.disarm()
        (number,) = self._received(mx.zeros((1,), mx.int32)).tolist()
        self.watchdog.arm()
        if number == STOP:
            self._is_aligned, self.is_stopped = False, True
            raise RanksError("rank 0 has ended")
        return number

    def gather(self, number: int) -> list[int]:
        self.lead(0)
        row = mx.zeros((self.size,), mx.int64)
        row[self.rank] = number
        numbers = self._received(row).tolist()
        self.done()
        return numbers

    def same(self, make: Callable[[], T], rank: int = 0) -> T:
        sends = self.rank == rank
        result: T | Exception | None = None
        if sends:
            try:
                result = make()
            except (MlxchatError, OSError) as error:
                result = error
        data = pickle.dumps(result) if sends else b""
        padded = np.zeros(self.gather(len(data))[rank], np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        self._begin()
        shared = self._received(mx.array(padded))
        self.done()
        result = result if sends else pickle.loads(shared.tobytes())
        if isinstance(result, Exception):
            raise result
        return cast(T, result)

    def failed(self, job: Callable[[], object]) -> list[int]:
        has_failed = False
        try:
            if not self.leads:
                job()
        except (OSError, SnapshotError):
            has_failed = True
        return [rank for rank, failed in enumerate(self.gather(has_failed)) if failed]

    def token(self, drawn: mx.array) -> mx.array:
        # On the other ranks, too, it depends on the logits, whose sums are then computed.
        return self._sum(drawn * int(self.leads))

    def check_same(self, text: str, what: str) -> None:
        """Raise RanksError on all ranks if one of them has another text."""
        digests = self.gather(zlib.crc32(text.encode()) >> 1)
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                raise RanksError(f"rank {rank} has {what}")

    def _sum(self, numbers: mx.array) -> mx.array:
        # Integer sums are exact, and adding zeros changes nothing.
        return mx.distributed.all_sum(numbers, group=self.group)

    def _received(self, numbers: mx.array) -> np.ndarray:
        with self.watchdog.losses():
            return np.array(self._sum(numbers))

    # Losses, and the end

    @contextmanager
    def losses(self) -> Iterator[None]:
        with self.watchdog.losses():
            try:
                yield
            except (GeneratorExit, MlxchatError):
                self.done()
                raise
            finally:
                self.watchdog.disarm()
            self.done()

    def done(self) -> None:
        self._is_computing = False
        self.watchdog.disarm()

    def _begin(self) -> None:
        self._is_computing = True
        self.watchdog.arm()

    @contextmanager
    def turn(self) -> Iterator[None]:
        self._is_aligned = False
        try:
            yield
        except (DeviceError, RanksError):
            raise
        except MlxchatError:
            self._is_aligned = True
            raise
        self._is_aligned = True

    def stop(self) -> None:
        """On rank 0: make the others exit, by closed sockets if need be; else wait for it."""
        if self._is_computing or self.watchdog.has_lost:
            return
        with suppress(RuntimeError, RanksError):
            if self.leads:
                self.lead(STOP)
            while not self.leads and not self.is_stopped:
                self.lead(0)
        # Computation in progress must not outlive the interpreter.
        with suppress(RuntimeError):
            platform.synchronize()
        self.watchdog.disarm()
