"""The reply in progress, in a file next to the database.

What is written there survives a kill of the process. Every quarter of a second a thread forces it
to the disk, so that nothing waits for that. Each line is a piece, `[id of the turn's row, whether
it is of the thought, text]`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mlxchat.files import force_to_disk, open_file, open_to_read, write_all
from mlxchat.text.reply_reader import Piece

MAX_BYTES = 1 << 28
FORCE_EVERY_S = 0.25


class ReplyFile:
    """For one reply after another. Removed when a reply is in the database."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._bytes = 0
        self._waiting = b""
        self._forcing: threading.Thread | None = None
        self._forced_s = 0.0
        self._error: OSError | None = None

    def add(self, path: Path, turn: int, pieces: Iterable[Piece]) -> None:
        """Raises OSError, also one of an earlier piece; then the next call adds these, too."""
        lines = (json.dumps([turn, *piece], ensure_ascii=False) for piece in pieces)
        # Unpaired surrogates become question marks.
        self._waiting += "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        if self._descriptor < 0:
            self._descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            self._forced_s = time.monotonic()
        # At its place: after an interruption, it is written again.
        write_all(self._descriptor, self._waiting, self._bytes)
        self._bytes, self._waiting = self._bytes + len(self._waiting), b""
        error, self._error = self._error, None
        if error is not None:
            raise error
        is_forcing = self._forcing is not None and self._forcing.is_alive()
        if not is_forcing and time.monotonic() - self._forced_s >= FORCE_EVERY_S:
            self._forced_s = time.monotonic()
            # A descriptor of its own: the file may be closed meanwhile.
            copy = os.dup(self._descriptor)
            self._forcing = threading.Thread(
                target=self._force, args=(copy,), name="reply", daemon=True
            )
            self._forcing.start()

    def _force(self, descriptor: int) -> None:
        try:
            force_to_disk(descriptor)
        except OSError as error:
            self._error = error
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Also one that a killed process has left. One that stays is no longer than its turn."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._bytes, self._waiting = -1, 0, b""
        with suppress(OSError):
            path.unlink()


def reply_path(directory: Path, id_: int) -> Path:
    """Of the session with that id."""
    return directory / f"{id_}.reply"


def read_reply(path: Path) -> tuple[int, str, str] | None:
    """The turn, the thought and the reply; None if there is no file. A kill or a power cut can
    have damaged the end."""
    try:
        with open_to_read(path) as file:
            *lines, _ = file.read(MAX_BYTES).split(b"\n")
    except OSError:
        return None
    found: int | None = None
    texts: tuple[list[str], list[str]] = ([], [])
    for line in lines:
        try:
            piece = json.loads(line)
        except (ValueError, RecursionError):
            break
        match piece:
            case [int(turn), bool(of_thought), str(text)]:
                found = turn
                texts[of_thought].append(text)
            case _:
                break
    return None if found is None else (found, "".join(texts[True]), "".join(texts[False]))
