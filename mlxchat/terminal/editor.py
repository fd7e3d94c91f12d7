"""The line editor of a chat, for terminals that can move the cursor: keys, history, completion.

Other terminals use `plain_input`. Callers handle slash commands.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from mlxchat.files import make_private_directory, open_file
from mlxchat.terminal import visible
from mlxchat.terminal.plain_input import (
    CONTINUATION,
    LEAVING_HINT,
    PROMPT,
    EndOfInput,
    is_open,
    message_of,
)
from mlxchat.terminal.worker import TICK_S, ending_by

REFRESH_S = 0.5
_FILE_COMMANDS = ("/file", "/export", "/model")

# Suggests arguments of a command, given their typed beginning.
Suggest = Callable[[str, str], Iterable[str]]


class Editor:
    """Reads messages with Emacs keys, above a status line from `toolbar()`. `suggest(command,
    typed)` completes arguments. `next_signal` returns a signal that has come, if any. Without a
    `history_file` the history lasts as long as the process.
    """

    def __init__(
        self,
        *,
        history_file: Path | None,
        commands: Mapping[str, str],
        toolbar: Callable[[], str],
        suggest: Suggest = lambda *_: (),
        next_signal: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._next_signal = next_signal
        self._warned = self._was_warned = False
        self._ended_by: int | None = None
        # Whether Ctrl-C, which reaches every process of the terminal, is for an external editor.
        self._is_outside = False
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUATION,
            history=_history(history_file),
            completer=_ChatCompleter(commands, suggest),
            complete_while_typing=Condition(
                lambda: _is_command_name(self._session.default_buffer.text)
            ),
            key_bindings=self._keys(),
            enable_suspend=True,
            placeholder=lambda: [("ansibrightblack", LEAVING_HINT if self._warned else "")],
            bottom_toolbar=lambda: " ".join(visible(toolbar()).split("\n")),
            refresh_interval=REFRESH_S,
            eof_exception=EndOfInput,
            tempfile_suffix=".md",
        )
        self._session.app.key_processor.before_key_press += self._expire_warning
        # A remote terminal may take more than two seconds to report its cursor position. That does
        # not deserve a warning in the middle of a chat: only the toolbar is lost.
        self._session.app.renderer.cpr_not_supported_callback = None

    def read(self, draft: str = "") -> str:
        """Return the next message, edited from `draft`. Raises EndOfInput."""
        self._warned = False
        self._ended_by = None
        try:
            return message_of(self._session.prompt(default=draft, pre_run=self._watch))
        except (EOFError, OSError) as error:
            # A terminal that has been closed cannot be restored either.
            if self._ended_by is not None:
                raise ending_by(self._ended_by) from None
            if isinstance(error, OSError):
                raise
            raise EndOfInput from None

    def _watch(self) -> None:
        self._session.app.create_background_task(self._obey_signals())

    async def _obey_signals(self) -> None:
        # A Ctrl-C was for what came before.
        while (number := self._next_signal()) not in (signal.SIGTERM, signal.SIGHUP):
            await asyncio.sleep(TICK_S)
        self._ended_by = number
        self._session.app.exit(exception=EOFError())

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        at_prompt = has_focus(DEFAULT_BUFFER)
        # In Emacs mode Ctrl-O sends too, and would send what Enter does not.
        for sends in ("enter", "c-o"):
            keys.add(sends, filter=at_prompt)(_send)
        # Enter typed ahead arrives as a newline character.
        for enter in ("enter", "c-j"):
            keys.add("escape", enter, filter=at_prompt)(_insert_newline)
        keys.add("c-g", filter=at_prompt)(self._open_editor)
        keys.add("c-c", filter=at_prompt)(self._interrupt)
        keys.add("<sigint>")(self._interrupt)
        return keys

    def _interrupt(self, event: KeyPressEvent) -> None:
        if self._is_outside:
            return
        if self._session.default_buffer.text:
            self._session.default_buffer.reset()
        elif self._was_warned:
            event.app.exit(exception=EndOfInput())
        else:
            self._warned = True

    def _open_editor(self, event: KeyPressEvent) -> None:
        if self._is_outside:
            return
        self._is_outside = True

        async def edited(editing: asyncio.Task[None]) -> None:
            try:
                await editing
                # On a busy machine, the last Ctrl-C is seen only after the editor has ended.
                await asyncio.sleep(TICK_S)
            finally:
                self._is_outside = False

        event.app.create_background_task(edited(event.current_buffer.open_in_editor()))

    def _expire_warning(self, _: object) -> None:
        self._was_warned, self._warned = self._warned, False


class _ChatCompleter(Completer):
    """Completes commands while they are typed; on Tab, their arguments and file names."""

    def __init__(self, commands: Mapping[str, str], suggest: Suggest) -> None:
        self._commands = commands
        self._suggest = suggest
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        typed = document.text_before_cursor
        if _is_command_name(typed):
            for name, description in self._commands.items():
                if name.startswith(typed):
                    yield Completion(name, -len(typed), display_meta=description)
        elif typed.startswith("/") and complete_event.completion_requested:
            command, _, argument = typed.partition(" ")
            argument = argument.lstrip(" ")
            for suggested in self._suggest(command, argument):
                yield Completion(suggested, -len(argument))
            if command in _FILE_COMMANDS:
                yield from self._paths.get_completions(Document(argument), complete_event)


class _FileHistory(FileHistory):
    """If the file cannot be used any longer, the history stays in memory."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _history(file: Path | None) -> History:
    """A private history file, if it can be used."""
    if file is not None:
        with suppress(OSError):
            make_private_directory(file.parent)
            # Follow a symbolic link: the user made it.
            os.close(open_file(file.resolve(), os.O_CREAT | os.O_WRONLY))
            return _FileHistory(file)
    return InMemoryHistory()


def _send(event: KeyPressEvent) -> None:
    buffer = event.current_buffer
    if is_open(buffer.text):
        buffer.insert_text("\n")
    elif message_of(buffer.text).strip():
        buffer.validate_and_handle()


def _insert_newline(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def _is_command_name(text: str) -> bool:
    return text.startswith("/") and not any(c.isspace() for c in text)
