"""Keeps the machine awake while it is working."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress


@contextmanager
def keep_awake(system: str = sys.platform) -> Generator[None]:
    """While the body runs, keep a Mac from idle sleep; do nothing on other systems.

    The display may sleep, and a closed lid still puts a laptop to sleep. If it fails, the body runs
    anyway.
    """
    program = shutil.which("caffeinate") if system == "darwin" else None
    caffeinate = None
    if program is not None:
        with suppress(OSError):
            caffeinate = subprocess.Popen(
                # It ends with this process, even if that is killed.
                [program, "-i", "-w", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # The terminal's Ctrl-C asks for a graceful end, which may take a while.
                start_new_session=True,
            )
    try:
        yield
    finally:
        if caffeinate is not None:
            caffeinate.kill()
            caffeinate.wait()
