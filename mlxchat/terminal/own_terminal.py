"""A terminal of its own for a program whose launcher stands between it and the person's.

MLX's launcher reads the keyboard and passes it on in a pipe, dies of Ctrl-C, and shows what is
written a tenth of a second later, split anywhere. So the program runs in a pseudo-terminal: its
keys come out of that pipe, its output goes to the terminal itself, and Ctrl-C is a key.

Nothing heavy is imported: whoever calls this forks.
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

# A key that the launcher does not take in this time it never will: it reads something else.
LAUNCHER_S = 0.3

# Signals that are meant for the program.
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

# How often the size of the terminal is looked at.
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
    """Run this very command line in a pseudo-terminal; return its exit status."""
    terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    child, master = pty.fork()
    if child == 0:
        # The launcher tells the size that its terminal had once.
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    with handled_by(pass_on, PASSED_ON), set_to(terminal, raw(terminal)):
        _Pump(terminal, master).run()
        # Without its terminal it is told to hang up, if it has not ended.
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
        """Until the program has ended, or the launcher has."""
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
    """What there is; nothing at the end, which a pseudo-terminal tells with an error."""
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""


def _write(fd: int, data: bytes) -> None:
    with suppress(OSError):
        write_all(fd, data)
