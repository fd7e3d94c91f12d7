"""For a process that MLX's launcher has started: it ends with the launcher, and reports a lost
connection in one line."""

import os
import re
import signal
import stat
import sys
import threading
import time

POLL_EVERY_S = 1.0

# MLX writes a line in pieces: when two threads fail at the same time, the end of one message, such
# as " Sending to socket 6 failed with errno 32", may end up on a separate line.
NOISE = re.compile(rb"\[(?:ring|jaccl)\]|.*failed with errno \d")


def hide_backend_messages() -> None:
    """Filter output written directly to descriptor 2; `sys.stderr` bypasses the filter."""
    sys.stderr.flush()
    real = os.dup(2)
    sys.stderr = os.fdopen(real, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def pass_on() -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if not NOISE.match(line):
                    os.write(real, line)

    threading.Thread(target=pass_on, name="stderr", daemon=True).start()


def end_with_launcher() -> None:
    """If the launcher whose pipe is our stdin is killed, exit as on SIGTERM: it can no longer stop
    us, and nothing reads our output."""
    if not _stdin_is_pipe():
        return
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(POLL_EVERY_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="launcher", daemon=True).start()


def _stdin_is_pipe() -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:
        return False
