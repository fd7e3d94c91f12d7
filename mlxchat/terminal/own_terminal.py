"""A pseudo-terminal for a program whose launcher is between it and the user's terminal.

MLX's launcher reads the keyboard and forwards it through a pipe, dies on Ctrl-C, and shows output a
tenth of a second late, split anywhere. So the program runs in a pseudo-terminal: keys come from
that pipe, output goes directly to the terminal, and Ctrl-C is a key.

This module imports nothing heavy, because it forks.
"""

import os
import pty
import select
import signal
import sys
import time
from contextlib import suppress

from mlxchat.files import write_all
from mlxchat.handlers import handled_by
from mlxchat.terminal.modes import copy_size, raw, set_to

# If the launcher has not read a key within this time, it never will: it is reading something else.
LAUNCHER_S = 0.3

# Signals that are meant for the program.
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

# How often the terminal's size is checked.
LOOK_S = 0.1


def has_terminal_elsewhere() -> bool:
    """Whether there is a terminal, but not on stdin."""
    if os.isatty(0):
        return False
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return False


def run_again_in_terminal() -> int:
    """Run this command line again in a pseudo-terminal; return its exit status."""
    terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    child, master = pty.fork()
    if child == 0:
        # The launcher passes the initial size of its terminal, which may be outdated.
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    with handled_by(pass_on, PASSED_ON), set_to(terminal, raw(terminal)):
        _Pump(terminal, master).run()
        # Closing its terminal hangs the program up if it is still running.
        os.close(master)
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


class _Pump:
    def __init__(self, terminal: int, master: int) -> None:
        self._terminal = terminal
        self._master = master
        self._size = b""
        self._unread_since_s: float | None = None

    def run(self) -> None:
        """Run until the program or the launcher ends."""
        while True:
            self._size = copy_size(self._terminal, self._master, self._size)
            ready, _, _ = select.select([0, self._master], [], [], LOOK_S)
            if self._master in ready:
                written = _read(self._master)
                if not written:
                    return
                _write(self._terminal, written)
            if 0 in ready:
                keys = _read(0)
                if not keys:
                    return
                _write(self._master, keys)
            self._discard_unread()

    def _discard_unread(self) -> None:
        if not select.select([self._terminal], [], [], 0)[0]:
            self._unread_since_s = None
            return
        now_s = time.monotonic()
        self._unread_since_s = self._unread_since_s or now_s
        if now_s - self._unread_since_s > LAUNCHER_S:
            _write(self._master, _read(self._terminal))


def _read(fd: int) -> bytes:
    """The available bytes; empty at the end, which a pseudo-terminal reports as an error."""
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""


def _write(fd: int, data: bytes) -> None:
    with suppress(OSError):
        write_all(fd, data)
