"""The reply that is being written, in a file beside the transcript until it stands there.

One line of JSON, `{"turn": serial, "so_far": characters}`, and then the whole reply as far as it
has come, raw UTF-8; the first `so_far` characters of it were there before it was continued. A
character that is never text stands before and after each thought.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from mlxchat.files import open_file, open_to_read, write_all

NAME = "reply.unfinished"
MOST_BYTES = 1 << 28

# One of Unicode's noncharacters, before and after each thought.
THOUGHT_MARK = "\ufdd0"


class UnfinishedReply:
    """The file at `path`. What could not be written yet is tried again with what comes next."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The turn whose reply is being written.
        self.serial: int | None = None
        self._descriptor: int | None = None
        self._data = bytearray()
        self._written_bytes = 0
        self._in_thought = False

    def begin(self, serial: int, thought: str, reply: str) -> None:
        """Start on a reply, or its continuation, once the last one is removed or closed; nothing is
        written yet."""
        self._in_thought = bool(thought and not reply)
        so_far = f"{THOUGHT_MARK}{thought}" if thought else ""
        so_far += f"{THOUGHT_MARK}{reply}" if thought and reply else reply
        header = json.dumps({"turn": serial, "so_far": len(so_far)})
        self._data = bytearray(f"{header}\n{so_far}".encode("utf-8", "replace"))
        self._written_bytes = 0
        self.serial = serial

    def add(self, text: str, thought: bool = False) -> None:
        """Give more of the reply to the system, which keeps it whatever becomes of this process.

        Raises OSError.
        """
        text = text.replace(THOUGHT_MARK, "\ufffd")
        if text and thought is not self._in_thought:
            self._in_thought = thought
            text = THOUGHT_MARK + text
        self._data += text.encode("utf-8", "replace")
        if self._descriptor is None:
            self._descriptor = open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        # At a known place, so that it does no harm to write the same twice.
        rest = bytes(self._data[self._written_bytes :])
        write_all(self._descriptor, rest, self._written_bytes)
        self._written_bytes = len(self._data)

    def remove(self) -> None:
        """Remove the file, if there is one. Where that fails, it can be tried again."""
        self.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave the file as it is."""
        self.serial = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_unfinished(path: Path) -> tuple[int, str, str] | None:
    """The serial, the thought and the reply; None if there is no such file, or nothing usable."""
    try:
        with open_to_read(path) as file:
            header, newline, text = file.read(MOST_BYTES).partition(b"\n")
        value = json.loads(header)
        serial, so_far = value["turn"], value["so_far"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if type(serial) is not int or type(so_far) is not int or not newline:
        return None
    # A power cut can leave zeros at the end, and a kill half a character.
    pieces = text.rstrip(b"\0").decode("utf-8", "ignore").split(THOUGHT_MARK)
    return serial, "".join(pieces[1::2]), "".join(pieces[::2])
