"""The ring backend's sockets, used to wait without a busy loop and to detect lost ranks.

MLX waits for a message in a busy loop and reports a lost connection without any detail. Nothing
here is visible to the ring: no data is read.
"""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import Any

# A machine that loses power does not close its sockets. The kernel probes an idle connection and
# closes it after this many unanswered probes.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 10, 5, 4

POLL_EVERY_S = 0.1


def open_sockets() -> frozenset[int]:
    """File descriptors of this process's sockets."""
    found: set[int] = set()
    for path in Path("/dev/fd").iterdir():
        # The descriptor used to read the directory is closed by now.
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(path.name)).st_mode):
                found.add(int(path.name))
    return frozenset(found)


# Only Linux reports this before all data has been read.
HUNG_UP = getattr(select, "POLLRDHUP", 0)


class RingSockets:
    """This rank's connections to its two neighbours."""

    def __init__(self, rank_of: dict[int, int]) -> None:
        # Our own descriptors, since MLX may close its own.
        self._ranks = {socket.socket(fileno=os.dup(fd)): rank for fd, rank in rank_of.items()}
        for each in self._ranks:
            _keep_alive(each)

    @classmethod
    def opened_since(cls, before: Set[int], rank: int, size: int) -> RingSockets | None:
        """The sockets opened by joining the ring; None with another backend."""
        hostfile = os.environ.get("MLX_HOSTFILE")
        if hostfile is None:
            return None
        addresses = _addresses(hostfile)
        right, left = (rank + 1) % size, (rank - 1) % size
        ranks: dict[int, int] = {}
        for fd in open_sockets() - before:
            peer = _peer(fd)
            if peer is not None:
                # We connected to the right neighbour, at its address; the left one connected to us.
                ranks[fd] = right if peer in addresses.get(right, ()) else left
        return cls(ranks) if ranks else None

    @property
    def neighbours(self) -> set[int]:
        return set(self._ranks.values())

    def wait_readable(self) -> None:
        """Wait until a neighbour has sent something or is gone."""
        select.select(list(self._ranks), [], [])

    def silent(self, within_s: float) -> set[int]:
        """Shut down our sending side, to which any running rank responds by exiting; return the
        neighbours that have not exited after `within_s` seconds."""
        for each in self._ranks:
            with suppress(OSError):
                each.shutdown(socket.SHUT_WR)
        until_s = time.monotonic() + within_s
        while open_still := {rank for each, rank in self._ranks.items() if not _has_ended(each)}:
            if time.monotonic() > until_s:
                return open_still
            time.sleep(POLL_EVERY_S)
        return set()

    def gone(self) -> int | None:
        """A neighbour that has closed its connection, if any."""
        return next((rank for each, rank in self._ranks.items() if _has_ended(each)), None)

    def close(self) -> None:
        """Shut down the connections, even while in use."""
        for each in self._ranks:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _has_ended(each: socket.socket) -> bool:
    """Whether the other end is closed, even if some of its data was never read."""
    if HUNG_UP:
        poll = select.poll()
        poll.register(each, HUNG_UP)
        if poll.poll(0):
            return True
    try:
        return each.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _addresses(hostfile: str) -> dict[int, set[str]]:
    """The addresses each rank listens on, as `ip:port`."""
    try:
        hosts: Any = json.loads(Path(hostfile).read_text(encoding="utf-8"))
        return {rank: set(addresses) for rank, addresses in enumerate(hosts)}
    except (OSError, ValueError, TypeError):
        return {}


def _peer(fd: int) -> str | None:
    with socket.socket(fileno=os.dup(fd)) as each, suppress(OSError):
        ip, port, *_ = each.getpeername()
        return f"{ip}:{port}"
    return None


def _keep_alive(each: socket.socket) -> None:
    idle = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
    with suppress(OSError):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if idle is not None:
            each.setsockopt(socket.IPPROTO_TCP, idle, KEEPALIVE_IDLE_S)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
