"""Line input for terminals without cursor movement, and what all input shares: messages in triple
quotes, and the external editor. Editing keys are in `editor`."""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future
from pathlib import Path

from mlxchat.errors import InputError
from mlxchat.terminal import visible
from mlxchat.terminal.worker import Worker

PROMPT = "> "
CONTINUATION = "  "
CTRL_D = b"\x04"
LEAVING_HINT = "Ctrl-C again or Ctrl-D to leave"

_QUOTES = '"""'
# In the order in which prompt_toolkit and Debian try them.
_EDITORS = ("editor", "nano", "pico", "vi", "emacs")


class EndOfInput(Exception):
    """The user leaves: Ctrl-D on an empty line, or Ctrl-C twice in a row."""


class PlainInput:
    """Reads messages from stdin line by line, without escape sequences."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._line: Future[bytes] | None = None

    def read(self, draft: str = "") -> str:
        """Return the next message. A `draft` is shown, and an empty line sends it.

        Raises EndOfInput.
        """
        draft = message_of(draft)
        if draft.strip():
            self._write(f"{visible(draft)}\n(Enter sends this, anything else replaces it)\n")
        interrupted = False
        while True:
            try:
                typed = self._next_line(PROMPT)
                while is_open(typed):
                    typed += "\n" + self._next_line(CONTINUATION)
            except KeyboardInterrupt:
                self._write("\n")
                if interrupted:
                    raise EndOfInput from None
                interrupted = True
                self._write(f"{LEAVING_HINT}\n")
                continue
            interrupted = False
            text = message_of(typed) if typed else draft
            if text.strip():
                return text

    def _next_line(self, prompt: str) -> str:
        self._write(prompt)
        # After Ctrl-C, the reader still waits for the line.
        self._line = self._line or self._worker.start_reading(sys.stdin.buffer.readline)
        try:
            line = self._worker.wait(self._line)
        except OSError:
            # A closed terminal counts as end of input.
            line = b""
        self._line = None
        # Ctrl-D arrives as a key if the terminal was not editing lines when it was pressed.
        if not line or line.startswith(CTRL_D):
            self._write("\n")
            raise EndOfInput
        return line.decode("utf-8", "replace").removesuffix("\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def is_open(typed: str) -> bool:
    """Whether `typed` starts with triple quotes that are not closed yet."""
    typed = typed.strip()
    closed = len(typed) >= 2 * len(_QUOTES) and typed.endswith(_QUOTES)
    return typed.startswith(_QUOTES) and not closed


def message_of(typed: str) -> str:
    """The message to send: without triple quotes and trailing newlines, in valid Unicode."""
    bare = typed.strip()
    if bare.startswith(_QUOTES) and not is_open(bare):
        typed = bare.removeprefix(_QUOTES).removesuffix(_QUOTES).removeprefix("\n")
    # Invalid UTF-8 arrives as lone surrogates, which no tokenizer accepts.
    return typed.rstrip("\n").encode("utf-8", "replace").decode()


def edit(text: str, file_name: str = "message.md") -> str:
    """Return `text` as saved by $VISUAL, $EDITOR or the first editor found, which the shell starts.

    The editor gets a copy called `file_name`, whose suffix shows it the type of text.

    Raises InputError if the editor fails, or saves something other than text.
    """
    wanted = os.environ.get("VISUAL", "").strip() or os.environ.get("EDITOR", "").strip()
    editor = wanted or next(filter(shutil.which, _EDITORS), "vi")
    with tempfile.TemporaryDirectory(prefix="mlxchat-") as directory:
        file = Path(directory) / file_name
        file.write_text(text, encoding="utf-8", errors="replace")
        command = ["sh", "-c", f'{editor} "$1"', editor, str(file)]
        status = subprocess.run(command, check=False).returncode
        edited = file.read_bytes() if file.exists() else b"\xff"
    if status != 0:
        raise InputError(
            f"{editor} exited with status {status}: nothing was changed; set $VISUAL or $EDITOR"
        )
    try:
        return edited.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise InputError(f"{editor} saved a file that is not UTF-8 text") from None
