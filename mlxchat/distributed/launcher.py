"""The launcher, as seen from what it has launched."""

import os
import signal
import stat
import threading
import time

LOOK_EVERY_S = 1.0


def end_with_launcher() -> None:
    """Where a launcher that has given us its pipes is killed, end as at SIGTERM: it can tell nobody
    any more, and nobody reads what is written."""
    if not _stdin_is_pipe():
        return
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(LOOK_EVERY_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="launcher", daemon=True).start()


def _stdin_is_pipe() -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:
        return False
