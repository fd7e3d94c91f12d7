"""The reply in progress, in a file next to the transcript until it is recorded there.

One line of JSON, `{"turn": serial, "so_far": characters}`, then the reply so far in raw UTF-8. Its
first `so_far` characters were there before it was continued. A character that never occurs in text
comes before and after each thought.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from mlxchat.files import open_file, open_to_read, write_all

NAME = "reply.unfinished"
MAX_BYTES = 1 << 28

# One of Unicode's noncharacters, before and after each thought.
THOUGHT_MARK = "\ufdd0"


class UnfinishedReply:
    """The file at `path`. After a failed write, the next one tries again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The turn of the reply in progress.
        self.serial: int | None = None
        self._descriptor: int | None = None
        self._data = bytearray()
        self._written_bytes = 0
        self._in_thought = False

    def begin(self, serial: int, thought: str, reply: str) -> None:
        """Start a reply or a continuation, after the last one was removed or closed. Writes
        nothing yet."""
        self._in_thought = bool(thought and not reply)
        so_far = f"{THOUGHT_MARK}{thought}" if thought else ""
        so_far += f"{THOUGHT_MARK}{reply}" if thought and reply else reply
        header = json.dumps({"turn": serial, "so_far": len(so_far)})
        self._data = bytearray(f"{header}\n{so_far}".encode("utf-8", "replace"))
        self._written_bytes = 0
        self.serial = serial

    def add(self, text: str, thought: bool = False) -> None:
        """Write more of the reply, so that it survives a kill of this process. Raises OSError."""
        text = text.replace(THOUGHT_MARK, "\ufffd")
        if text and thought is not self._in_thought:
            self._in_thought = thought
            text = THOUGHT_MARK + text
        self._data += text.encode("utf-8", "replace")
        if self._descriptor is None:
            self._descriptor = open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        # At a fixed offset, so that writing the same bytes twice does no harm.
        rest = bytes(self._data[self._written_bytes :])
        write_all(self._descriptor, rest, self._written_bytes)
        self._written_bytes = len(self._data)

    def remove(self) -> None:
        """Remove the file, if any. If this fails, it can be tried again."""
        self.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file and leave it."""
        self.serial = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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
