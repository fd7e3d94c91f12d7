"""The line editor of a chat, for terminals that can move the cursor: keys, history, completion.

Other terminals use `plain_input`. Callers handle slash commands.
"""

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from mlxchat.files import make_private_directory, open_file
from mlxchat.handlers import handled_by
from mlxchat.terminal import visible
from mlxchat.terminal.plain_input import (
    CONTINUATION,
    LEAVING_HINT,
    PROMPT,
    EndOfInput,
    is_open,
    message_of,
)

REFRESH_S = 0.5
_FILE_COMMANDS = ("/file", "/load", "/save", "/export", "/model")


class Editor:
    """Reads messages with Emacs keys, above a status line from `toolbar()`. `suggest(command,
    typed)` completes arguments. Without a `history_file` the history lasts as long as the process.
    """

    def __init__(
        self,
        *,
        history_file: Path | None,
        commands: Mapping[str, str],
        toolbar: Callable[[], str],
        suggest: Callable[[str, str], Iterable[str]] = lambda *_: (),
        terminal: TextIO | None = None,
    ) -> None:
        self._warned = self._was_warned = False
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUATION,
            history=InMemoryHistory() if history_file is None else _PrivateHistory(history_file),
            completer=_ChatCompleter(commands, suggest),
            complete_while_typing=Condition(self._is_typing_a_command),
            key_bindings=self._keys(),
            placeholder=self._hint,
            bottom_toolbar=lambda: " ".join(visible(toolbar()).split("\n")),
            refresh_interval=REFRESH_S,
            eof_exception=EndOfInput,
            enable_suspend=True,
            tempfile_suffix=".md",
            output=None if terminal is None else create_output(terminal),
        )
        self._session.app.key_processor.before_key_press += self._expire_warning
        # A remote terminal may take more than two seconds to report its cursor position. That does
        # not deserve a warning in the middle of a chat: only the toolbar is lost.
        self._session.app.renderer.cpr_not_supported_callback = None

    def read(self, draft: str = "") -> str:
        """Return the next message, edited from `draft`. Raises EndOfInput."""
        self._warned = False
        received: list[int] = []

        def end(number: int, _: FrameType | None) -> None:
            if not received:
                self._session.app.exit(exception=EOFError())
            received.append(number)

        # The usual handlers raise, and the prompt's event loop would swallow that. The loop also
        # takes over the signal watch without giving it back.
        ending = (signal.SIGTERM, signal.SIGHUP)
        heeded = [each for each in ending if signal.getsignal(each) is not signal.SIG_IGN]
        try:
            with handled_by(end, heeded), handled_by(self._continue, [signal.SIGCONT]):
                return message_of(self._session.prompt(default=draft))
        except EOFError:
            # Without a signal, the terminal has been closed.
            if not received:
                raise EndOfInput from None
        except OSError:
            # SIGHUP means that the terminal has been closed and cannot be restored.
            if not received:
                raise
        signal.raise_signal(received[0])
        raise EndOfInput

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        at_prompt = has_focus(DEFAULT_BUFFER)
        # In Emacs mode Ctrl-O sends too, and would send what Enter does not.
        for sends in ("enter", "c-o"):
            keys.add(sends, filter=at_prompt)(_send)
        # Enter typed ahead arrives as a newline character.
        for enter in ("enter", "c-j"):
            keys.add("escape", enter, filter=at_prompt)(_insert_newline)
        keys.add("c-g", filter=at_prompt)(_open_editor)
        keys.add("c-c", filter=at_prompt)(self._interrupt)
        keys.add("<sigint>")(self._interrupt)
        return keys

    def _is_typing_a_command(self) -> bool:
        return _is_command_name(self._session.default_buffer.text)

    def _interrupt(self, event: KeyPressEvent) -> None:
        if event.app._running_in_terminal:
            # Ctrl-C reaches every process of the terminal; this one is for the external editor.
            return
        if self._session.default_buffer.text:
            self._session.default_buffer.reset()
        elif self._was_warned:
            event.app.exit(exception=EndOfInput())
        else:
            self._warned = True

    def _continue(self, *_: object) -> None:
        app = self._session.app
        # If it stopped within prompt_toolkit's own suspension or the external editor, these do it.
        if app.loop is not None and not app._running_in_terminal:
            app.loop.call_soon_threadsafe(self._take_terminal_back)

    def _take_terminal_back(self) -> None:
        """Draw the line again, below what the shell has written."""
        app = self._session.app
        if app.is_running:
            app.input.raw_mode().__enter__()
            app.renderer.reset()
            app.invalidate()

    def _expire_warning(self, _: object) -> None:
        self._was_warned, self._warned = self._warned, False

    def _hint(self) -> StyleAndTextTuples:
        return [("ansibrightblack", LEAVING_HINT if self._warned else "")]


class _ChatCompleter(Completer):
    """Completes commands while they are typed; on Tab, their arguments and file names."""

    def __init__(
        self, commands: Mapping[str, str], suggest: Callable[[str, str], Iterable[str]]
    ) -> None:
        self._commands = commands
        self._suggest = suggest
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        typed = document.text_before_cursor
        if _is_command_name(typed):
            yield from self._names(typed)
        elif typed.startswith("/") and complete_event.completion_requested:
            command, _, argument = typed.partition(" ")
            argument = argument.lstrip(" ")
            for suggested in self._suggest(command, argument):
                yield Completion(suggested, start_position=-len(argument))
            if command in _FILE_COMMANDS:
                yield from self._paths.get_completions(Document(argument), complete_event)

    def _names(self, typed: str) -> Iterable[Completion]:
        return (
            Completion(name, start_position=-len(typed), display_meta=description)
            for name, description in self._commands.items()
            if name.startswith(typed)
        )


class _PrivateHistory(FileHistory):
    """A private history file. If it cannot be used, the history stays in memory."""

    def load_history_strings(self) -> Iterable[str]:
        with suppress(OSError):
            return list(super().load_history_strings())
        return ()

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            file = Path(os.fsdecode(self.filename))
            make_private_directory(file.parent)
            # Follow a symbolic link: the user made it.
            os.close(open_file(file.resolve(), os.O_CREAT | os.O_WRONLY))
            super().store_string(string)


def _send(event: KeyPressEvent) -> None:
    buffer = event.current_buffer
    if is_open(buffer.text):
        buffer.insert_text("\n")
    elif message_of(buffer.text).strip():
        buffer.validate_and_handle()


def _insert_newline(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def _open_editor(event: KeyPressEvent) -> None:
    if not event.app._running_in_terminal:
        event.current_buffer.open_in_editor()


def _is_command_name(text: str) -> bool:
    return text.startswith("/") and not any(c.isspace() for c in text)
