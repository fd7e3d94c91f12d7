"""What a terminal shows: the only importers of rich and prompt_toolkit live in this package."""

import os
import re

# C0 and C1 controls and DEL, except tab and newline: everything that can begin an escape sequence.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Replace what a terminal would obey by what it shows: ESC becomes ␛, and so on.

    Text from a model, a file or a pipe is untrusted: it may be read, it may not move the cursor,
    set the title or write to the clipboard.
    """
    return _CONTROLS.sub(_picture, text)


def is_dumb() -> bool:
    """Whether the terminal obeys no escape sequences."""
    return os.environ.get("TERM", "dumb") in ("", "dumb")


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "�"
