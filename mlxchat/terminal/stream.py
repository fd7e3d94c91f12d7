"""The stream that reaches the user's terminal, wherever stdout goes."""

import os
import stat
import sys
import time
from pathlib import Path
from typing import TextIO

from mlxchat.terminal.modes import unread_bytes

# How long `tee` may take to write what it has read.
PASSED_ON_S = 0.1
# A reader that takes longer is not writing to the terminal.
MAX_WAIT_S = 1.0
POLL_S = 0.01


def terminal_stream() -> TextIO:
    """Stdout if it is a terminal, else stderr, else the terminal of stdin."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and stream.isatty():
            return stream
    if os.isatty(0):
        return Path(os.ttyname(0)).open("w", encoding="utf-8", errors="replace")
    return sys.stdout


def wait_for_pipe() -> None:
    """If stdout is a pipe, let its reader, which may be `tee`, write to the same terminal first."""
    descriptor = sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return
    deadline_s = time.monotonic() + MAX_WAIT_S
    while unread_bytes(descriptor) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    time.sleep(PASSED_ON_S)
