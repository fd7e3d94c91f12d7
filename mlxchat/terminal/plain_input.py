"""Line input for terminals without cursor movement, and what all input shares: messages in triple
quotes, and the external editor. Editing keys are in `editor`."""

import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from mlxchat.errors import InputError
from mlxchat.terminal import visible
from mlxchat.terminal.leaving import STATUS_OF_SIGNAL, TICK_S, ending_by

PROMPT = "> "
CONTINUATION = "  "
MESSAGE_FILE = "message.md"
CTRL_D = b"\x04"
LEAVING_HINT = "Ctrl-C again or Ctrl-D to leave"

MAX_READ_BYTES = 65_536

# Returns the number of a signal that has come, if any.
NextSignal = Callable[[], int | None]

_QUOTES = '"""'
# In the order in which prompt_toolkit and Debian try them.
_EDITORS = ("editor", "nano", "pico", "vi", "emacs")


def no_signal() -> int | None:
    return None


class EndOfInput(Exception):
    """The user leaves: Ctrl-D on an empty line, or Ctrl-C twice in a row."""


class PlainInput:
    """Reads messages from stdin line by line; prompts on `terminal`, by default stdout, without
    escape sequences. `next_signal` returns a signal that has come, if any."""

    def __init__(self, next_signal: NextSignal = no_signal, terminal: TextIO | None = None) -> None:
        self._next_signal = next_signal
        self._terminal = terminal
        self._unread = b""

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
                typed = self._typed_message()
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

    def _typed_message(self) -> str:
        typed = self._line(PROMPT)
        while is_open(typed):
            typed += "\n" + self._line(CONTINUATION)
        return typed

    def _line(self, prompt: str) -> str:
        self._write(prompt)
        while b"\n" not in self._unread:
            self._obey_signals(prompt)
            if select.select([0], [], [], TICK_S)[0]:
                try:
                    typed = os.read(0, MAX_READ_BYTES)
                except OSError:
                    # A closed terminal counts as end of input.
                    typed = b""
                self._unread += typed
                if not typed:
                    break
        line, newline, self._unread = self._unread.partition(b"\n")
        line += newline
        # Ctrl-D arrives as a key if the terminal was not editing lines when it was pressed.
        if not line or line.startswith(CTRL_D):
            self._write("\n")
            raise EndOfInput
        return line.decode("utf-8", "replace").removesuffix("\n")

    def _obey_signals(self, prompt: str) -> None:
        number = self._next_signal()
        if number == signal.SIGCONT:
            # Ctrl-Z has discarded the line, and the prompt is far above.
            self._write(prompt)
        elif number is not None and number in STATUS_OF_SIGNAL:
            raise ending_by(number)

    def _write(self, text: str) -> None:
        terminal = self._terminal or sys.stdout
        terminal.write(text)
        terminal.flush()


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


def edit(text: str, file_name: str = MESSAGE_FILE, terminal: TextIO | None = None) -> str:
    """Return `text` as saved by $VISUAL, $EDITOR or the first editor found.

    The editor gets a copy called `file_name`, whose suffix shows it the type of text. It draws on
    `terminal` if given.

    Raises InputError if the editor cannot be started, fails, or saves something other than text.
    """
    command = _editor_command()
    try:
        with tempfile.TemporaryDirectory(prefix="mlxchat-") as directory:
            file = Path(directory) / file_name
            file.write_text(text, encoding="utf-8", errors="replace")
            status = subprocess.run([*command, str(file)], stdout=terminal, check=False).returncode
            edited = file.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot edit with {shlex.join(command)}: {error.strerror}: set $VISUAL or $EDITOR"
        ) from error
    if status != 0:
        raise InputError(f"{shlex.join(command)} exited with status {status}: nothing was changed")
    try:
        return edited.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise InputError(f"{shlex.join(command)} saved a file that is not UTF-8 text") from None


def _editor_command() -> list[str]:
    wanted = os.environ.get("VISUAL", "").strip() or os.environ.get("EDITOR", "").strip()
    if not wanted:
        return [next(filter(shutil.which, _EDITORS), "vi")]
    try:
        return shlex.split(wanted)
    except ValueError as error:
        raise InputError(f"cannot understand $VISUAL or $EDITOR: {wanted}: {error}") from None
