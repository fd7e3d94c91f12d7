"""Keeps MLX's own lines about broken connections off stderr: one line of ours says it all."""

import os
import re
import sys
import threading

# MLX writes a line in pieces: of two threads that fail at once, the end of one may become a line by
# itself.
NOISE = re.compile(rb"\[(?:ring|jaccl)\]|[ \d]*failed with errno ")


def hide_backend_messages() -> None:
    """Let only other lines through that are written past Python; those of `sys.stderr` all are."""
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
