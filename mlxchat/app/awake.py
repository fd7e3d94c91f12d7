"""Keeps the machine awake while it is working."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

PATIENCE_S = 2.0


@contextmanager
def keep_awake(system: str = sys.platform) -> Generator[None]:
    """While the body runs, keep a Mac from idle sleep; do nothing on other systems.

    The display may sleep, and a closed lid still puts a laptop to sleep. If it fails, the body runs
    anyway.
    """
    caffeinate = _start_caffeinate() if system == "darwin" else None
    try:
        yield
    finally:
        if caffeinate is not None:
            _end(caffeinate)


def _start_caffeinate() -> "subprocess.Popen[bytes] | None":
    program = shutil.which("caffeinate")
    if program is None:
        return None
    try:
        return subprocess.Popen(
            # It ends with this process, even if that is killed.
            [program, "-i", "-w", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # The terminal's Ctrl-C asks for a graceful end, which may take a while.
            start_new_session=True,
        )
    except OSError:
        return None


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(OSError):
        process.terminate()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
