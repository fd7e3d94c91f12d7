"""The sockets that MLX's ring backend holds: what waiting and dying look like from outside of it.

MLX waits for a message with a busy processor, and tells of a lost connection no more than that.
The sockets themselves are touched in no way that the ring could notice: nothing is read.
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

# Where a machine loses its power, nobody closes its sockets: the kernel asks, and after so many
# seconds without an answer they are closed.
SILENT_S, ASK_EVERY_S, ASK_TIMES = 10, 5, 4

LOOK_EVERY_S = 0.1


def open_sockets() -> frozenset[int]:
    """File descriptors of this process's sockets."""
    found: set[int] = set()
    for path in Path("/dev/fd").iterdir():
        # The one that the directory was read with is closed by now.
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(path.name)).st_mode):
                found.add(int(path.name))
    return frozenset(found)


# Linux alone tells of it before all that came has been read.
HUNG_UP = getattr(select, "POLLRDHUP", 0)


class RingSockets:
    """This rank's connections with its two neighbours."""

    def __init__(self, rank_of: dict[int, int]) -> None:
        # Descriptors of our own: MLX may close its.
        self._ranks = {socket.socket(fileno=os.dup(fd)): rank for fd, rank in rank_of.items()}
        for each in self._ranks:
            _keep_alive(each)

    @classmethod
    def opened_since(cls, before: Set[int], rank: int, size: int) -> RingSockets | None:
        """Those that joining the ring has opened; None if another backend is in use."""
        hostfile = os.environ.get("MLX_HOSTFILE")
        if hostfile is None:
            return None
        addresses = _addresses(hostfile)
        right, left = (rank + 1) % size, (rank - 1) % size
        ranks: dict[int, int] = {}
        for fd in open_sockets() - before:
            peer = _peer(fd)
            if peer is not None:
                # We have called the right one, at its address; the left one has called us.
                ranks[fd] = right if peer in addresses.get(right, ()) else left
        return cls(ranks) if ranks else None

    @property
    def neighbours(self) -> set[int]:
        return set(self._ranks.values())

    def wait_for_news(self) -> None:
        """Until a neighbour has sent something, or is gone."""
        select.select(list(self._ranks), [], [])

    def silent(self, within_s: float) -> set[int]:
        """End what goes out from here, which any rank that still runs answers by ending as well;
        the neighbours that have not done so after some seconds."""
        for each in self._ranks:
            with suppress(OSError):
                each.shutdown(socket.SHUT_WR)
        until_s = time.monotonic() + within_s
        while open_still := {rank for each, rank in self._ranks.items() if not _has_ended(each)}:
            if time.monotonic() > until_s:
                return open_still
            time.sleep(LOOK_EVERY_S)
        return set()

    def gone(self) -> int | None:
        """The neighbour that has closed its connection, if one has."""
        return next((rank for each, rank in self._ranks.items() if _has_ended(each)), None)

    def close(self) -> None:
        """End the connections, whoever is using them."""
        for each in self._ranks:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _has_ended(each: socket.socket) -> bool:
    """Whether the other end is closed, even where something that it has sent was never read."""
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
    """Where each rank listens, as `ip:port`."""
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
            each.setsockopt(socket.IPPROTO_TCP, idle, SILENT_S)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_EVERY_S)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ASK_TIMES)
