"""Keep MLX's messages about broken connections off stderr; one line of ours is enough."""

import os
import re
import sys
import threading

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
