"""Watch the launcher that started this process."""

import os
import signal
import stat
import threading
import time

POLL_EVERY_S = 1.0


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
