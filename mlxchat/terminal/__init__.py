"""What a person sees and types. The only importer of rich and prompt_toolkit.

What the commands do is for `app`, their options for `cli`. Read `run_generate` first, then
`run_chat`. Here: no control character reaches the terminal.
"""

import os
from contextlib import suppress

from mlxchat.errors import ExitStatus

# C0 and C1 control characters and DEL, except tab and newline: all that begin a sequence.
_PICTURES = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code not in b"\t\n"},
    0x7F: "␡",
    **dict.fromkeys(range(0x80, 0xA0), "�"),
}


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived when there was nothing to end gracefully."""

    def __init__(self, status: ExitStatus) -> None:
        super().__init__(status)
        self.status = status


def visible(text: str) -> str:
    """Replace control characters with visible ones: ESC becomes ␛, and so on.

    Untrusted text must not move the cursor, set the title or write to the clipboard.
    """
    return text.translate(_PICTURES)


def is_dumb() -> bool:
    """Whether the terminal ignores escape sequences."""
    return os.environ.get("TERM", "dumb") in ("", "dumb")


def is_in_background(descriptor: int) -> bool:
    """Whether the shell, or another program, has the terminal."""
    with suppress(OSError):
        return os.tcgetpgrp(descriptor) != os.getpgrp()
    return False
