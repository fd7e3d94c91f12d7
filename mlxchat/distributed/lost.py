"""How a rank ends if another or the launcher is lost: sockets, a watchdog, a line with its name.

MLX waits for a message in a busy loop, reports a lost connection without any detail, and sometimes
not at all. Nothing here is visible to the ring: no data is read.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlxchat import platform
from mlxchat.errors import ExitStatus, RanksError

# If an evaluation takes longer, a rank hangs. The longest is a prefill step of a large model.
TIMEOUT_S = 60.0

# When a neighbour closes its connection, MLX usually fails immediately, but a race between its
# threads sometimes loses the error and it waits forever.
GONE_S = 3.0

# A rank that gives up closes its sockets, and its neighbours then exit too. One that has not after
# this long is the one that hangs.
RESPONSE_S = 6.0

# Closed sockets make the waiting operation fail; if it does not, the process exits after this.
GRACE_S = 5.0

# A machine that loses power does not close its sockets. The kernel probes an idle connection and
# closes it after this many unanswered probes.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 10, 5, 4

POLL_EVERY_S = 0.1
LOOK_EVERY_S = 1.0

# Only Linux reports this before all data has been read.
HUNG_UP = getattr(select, "POLLRDHUP", 0)

# In MLX's errors.
BACKEND = re.compile(r"\[(ring|jaccl|mpi|nccl)\]")


class RingSockets:
    """The connections of `rank` to its two neighbours; none with another backend."""

    def __init__(self, rank: int, size: int) -> None:
        self._ranks: dict[socket.socket, int] = {}
        hostfile = os.environ.get("MLX_HOSTFILE")
        if hostfile is None:
            return
        hosts: list[list[str]] = json.loads(Path(hostfile).read_text(encoding="utf-8"))
        left, right = (rank - 1) % size, (rank + 1) % size
        ours, theirs = ({int(each.rpartition(":")[2]) for each in hosts[n]} for n in (rank, right))
        for descriptor, own_port, other_port in platform.open_connections():
            # The left neighbour connected to us, and we to the right one.
            if own_port in ours:
                self._add(descriptor, left)
            elif other_port in theirs:
                self._add(descriptor, right)

    def _add(self, descriptor: int, rank: int) -> None:
        # Our own descriptor, since MLX may close its own.
        each = socket.socket(fileno=os.dup(descriptor))
        self._ranks[each] = rank
        idle = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
        with suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if idle is not None:
                each.setsockopt(socket.IPPROTO_TCP, idle, KEEPALIVE_IDLE_S)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)

    @property
    def neighbours(self) -> set[int]:
        return set(self._ranks.values())

    def wait_readable(self) -> None:
        """Wait until a neighbour has sent something or is gone."""
        if self._ranks:
            select.select(list(self._ranks), [], [])

    def gone(self) -> set[int]:
        """The neighbours that have closed their connection."""
        return {rank for each, rank in self._ranks.items() if _has_ended(each)}

    def shut(self, how: int = socket.SHUT_RDWR) -> None:
        """Shut down the connections, even in use. If only for sending, running ranks exit."""
        for each in self._ranks:
            with suppress(OSError):
                each.shutdown(how)


def _has_ended(each: socket.socket) -> bool:
    """Whether the other end is closed, even if some of its data was never read."""
    poll = select.poll()
    poll.register(each, HUNG_UP)
    try:
        return bool(poll.poll(0)) or each.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class Watchdog:
    """Ends this process, from its own thread, if what needs the other ranks does not finish, and
    rank 0 as on SIGTERM if the launcher, which stops the ranks and reads their output, is killed.

    Until a model is loaded, which may take any time, it `is_off` unless a neighbour has gone.
    """

    def __init__(self, rank: int, size: int, sockets: RingSockets) -> None:
        self.is_off = True
        self._others = set(range(size)) - {rank}
        self._launcher = os.getppid() if rank == 0 and platform.stdin_stays_open() else None
        self._sockets = sockets
        # Of this rank, which may be silent otherwise.
        self._stderr = sys.stderr
        self._armed_s: float | None = None
        self._is_giving_up = False
        self._lost: RanksError | None = None
        # Held while finding out which rank was lost.
        self._judging = threading.Lock()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def arm(self) -> None:
        """Give up unless disarmed, or armed again, within TIMEOUT_S; GONE_S without a neighbour."""
        self._armed_s = time.monotonic()

    def disarm(self) -> None:
        self._armed_s = None

    @property
    def has_lost(self) -> bool:
        """Whether a rank is known to be lost."""
        return self._lost is not None

    @contextmanager
    def losses(self) -> Iterator[None]:
        """Raise RanksError in place of what the body raises because a rank is lost: an error of
        MLX's, or anything while this rank gives up. Signals too: once one rank has ended, the
        launcher ends the others, some before they could report why."""
        try:
            yield
        except BaseException as error:
            is_of_backend = isinstance(error, RuntimeError) and BACKEND.search(str(error))
            if not self._is_giving_up and not is_of_backend:
                raise
            raise self.lost() from error

    def lost(self) -> RanksError:
        """The error to raise after an operation has failed."""
        with self._judging:
            self._lost = self._lost or self._gone()
            return self._lost

    def _gone(self) -> RanksError:
        gone = self._sockets.gone()
        if len(self._others) == 1 or not gone:
            return RanksError(f"{_one_of(self._others)} is gone: all ranks exit")
        # It may have exited because its other neighbour did, which that one's neighbours report.
        return RanksError(f"rank {min(gone)} is gone or has lost another rank: all ranks exit")

    def _hanging(self) -> RanksError:
        """The error naming the ranks that may hang: this rank only sees its neighbours."""
        neighbours = self._sockets.neighbours
        self._sockets.shut(socket.SHUT_WR)
        until_s = time.monotonic() + RESPONSE_S
        while (silent := neighbours - self._sockets.gone()) and time.monotonic() < until_s:
            time.sleep(POLL_EVERY_S)
        suspect = _one_of(silent or self._others - neighbours or self._others)
        return RanksError(f"{suspect} has not responded for {TIMEOUT_S:.0f} s: all ranks exit")

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            if self._launcher not in (None, os.getppid()):
                self._launcher = None
                os.kill(os.getpid(), signal.SIGTERM)
            armed_s, has_gone = self._armed_s, bool(self._sockets.gone())
            limit_s = GONE_S if has_gone else float("inf") if self.is_off else TIMEOUT_S
            if armed_s is not None and time.monotonic() - armed_s >= limit_s:
                self._give_up(has_gone=has_gone)

    def _give_up(self, *, has_gone: bool) -> None:
        self._is_giving_up = True
        with self._judging:
            self._lost = self._gone() if has_gone else self._hanging()
        # This makes the waiting operation fail, and cleanup run as after any error.
        self._sockets.shut()
        time.sleep(GRACE_S)
        with suppress(OSError):  # as from the launcher's pipe, if that is gone too
            print(f"mlxchat: error: {self.lost()}", file=self._stderr, flush=True)
        os._exit(ExitStatus.FAILURE)


def _one_of(ranks: set[int]) -> str:
    *others, last = map(str, sorted(ranks))
    return f"rank {', '.join(others)} or {last}" if others else f"rank {last}"
