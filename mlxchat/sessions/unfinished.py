"""Reads the reply in progress that an earlier version left in a file next to its transcript.

One line of JSON, `{"turn": serial, "so_far": characters}`, then the reply so far in raw UTF-8. Its
first `so_far` characters were there before it was continued. A character that never occurs in text
comes before and after each thought.
"""

import json
from pathlib import Path

from mlxchat.files import open_to_read

NAME = "reply.unfinished"
MAX_BYTES = 1 << 28

# One of Unicode's noncharacters, before and after each thought.
THOUGHT_MARK = "\ufdd0"


def read_unfinished(path: Path) -> tuple[int, str, str] | None:
    """The serial, the thought and the reply; None if there is no usable file."""
    try:
        with open_to_read(path) as file:
            header, newline, text = file.read(MAX_BYTES).partition(b"\n")
        value = json.loads(header)
        serial, so_far = value["turn"], value["so_far"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if type(serial) is not int or type(so_far) is not int or not newline:
        return None
    # A power cut can leave zeros at the end, a kill half a character.
    pieces = text.rstrip(b"\0").decode("utf-8", "ignore").split(THOUGHT_MARK)
    return serial, "".join(pieces[1::2]), "".join(pieces[::2])
